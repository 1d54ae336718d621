//! The functions of one test.

use std::ffi::{CStr, c_int};

use cableway_ompi_intercept::Call;
use cableway_ompi_intercept::patch::Redirection;

use super::{Built, Objects};

/// The results of the library's functions, and the amounts that replacements add.
pub(crate) const THEIRS: c_int = 1;
pub(crate) const OURS: c_int = 2;

pub(crate) extern "C" fn ours() -> c_int {
    OURS
}

pub(crate) extern "C" fn ours_by_the_other_name() -> c_int {
    // As with MPI functions whose two names have one address.
    std::hint::black_box(OURS)
}

/// The functions of one test, with their names.
pub(crate) struct Names {
    pub(crate) first: &'static CStr,
    pub(crate) calls: [Call; 2],
}

macro_rules! names {
    ($first:literal, $second:literal) => {{
        static NEXT: [cableway_ompi_intercept::Next; 2] =
            [cableway_ompi_intercept::Next::new($first), cableway_ompi_intercept::Next::new($second)];
        static NAMES: $crate::support::names::Names = $crate::support::names::Names {
            first: $first,
            calls: [
                cableway_ompi_intercept::Call {
                    entry: || $crate::support::names::ours as *const () as usize,
                    next: &NEXT[0],
                },
                cableway_ompi_intercept::Call {
                    entry: || $crate::support::names::ours_by_the_other_name as *const () as usize,
                    next: &NEXT[1],
                },
            ],
        };
        &NAMES
    }};
}

pub(crate) use names;

impl Names {
    pub(crate) fn objects(&self) -> Objects {
        Objects::new(self.first.to_str().expect("plain"))
    }

    /// Returns the redirection of calls to a library, which stays loaded from now on.
    pub(crate) fn redirection(&'static self, library: &Built) -> Redirection {
        let library = library.load(libc::RTLD_LAZY | libc::RTLD_NODELETE);
        let code = library.address(self.first.to_str().expect("plain"));
        // SAFETY: the library stays, and its functions take and return what these do.
        unsafe { Redirection::new(code, &self.calls) }.expect("the library is understood")
    }
}

//! MPICH's stream extensions: the library beside the component, its header, and its file for pkg-config.

use std::fs;
use std::path::{Path, PathBuf};

use super::files::{link, put};
use super::place::Place;

/// The library as it is built. It lies beside the component's file, if it exists.
pub(super) const LIBRARY: &str = "libcableway_mpix.so";
/// The name that programs record (`ompi/mpix/build.rs`).
const SONAME: &str = "libcableway_mpix.so.0";
const HEADER: &str = include_str!("../../../ompi/mpix/include/cableway_mpix.h");

/// The files of an installation.
struct Files {
    library: PathBuf,
    link: PathBuf,
    header: PathBuf,
    config: PathBuf,
}

impl Files {
    fn of(place: &Place) -> Files {
        Files {
            library: place.store.join(SONAME),
            link: place.store.join(LIBRARY),
            header: place.headers().join("cableway_mpix.h"),
            config: place.store.join("pkgconfig/cableway_mpix.pc"),
        }
    }
}

/// Installs the library that lies beside a component's file. Returns a sentence about its use.
pub(super) fn install(place: &Place, component: &Path) -> Result<String, String> {
    let Ok(library) = fs::read(component.with_file_name(LIBRARY)) else {
        return Ok(format!(
            "messages in the order of a stream: {LIBRARY} is not installed; this builds it, for the next install: cargo \
             build --release -p cableway-ompi-mpix"
        ));
    };
    let files = Files::of(place);
    put(&files.library, &library)?;
    link(&files.link, Path::new(SONAME))?;
    put(&files.header, HEADER.as_bytes())?;
    put(&files.config, config(place).as_bytes())?;
    let (store, headers) = (place.store.display(), place.headers());
    Ok(format!(
        "messages in the order of a stream, by MPICH's MPIX calls: compile with -I{} -L{store} -lcableway_mpix \
         -Wl,-rpath,{store}",
        headers.display()
    ))
}

/// Returns what pkg-config reads.
fn config(place: &Place) -> String {
    format!(
        "prefix={}\n\n\
         Name: cableway_mpix\n\
         Description: MPICH's stream extensions for Open MPI with Cableway's component\n\
         Version: {}\n\
         Libs: -L${{prefix}} -lcableway_mpix -Wl,-rpath,${{prefix}}\n\
         Cflags: -I${{prefix}}/include\n",
        place.store.display(),
        env!("CARGO_PKG_VERSION")
    )
}

/// Returns the files that [`install`] writes.
pub(super) fn files(place: &Place) -> [PathBuf; 4] {
    let Files { library, link, header, config } = Files::of(place);
    [library, link, header, config]
}

/// Returns the folder that they alone use.
pub(super) fn folder(place: &Place) -> PathBuf {
    place.store.join("pkgconfig")
}

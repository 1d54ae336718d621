//! Libraries beside the component that programs link, with their headers and their files for pkg-config: MPICH's stream
//! extensions, and the interfaces of LibMP and LibGDSync.

use std::fs;
use std::path::{Path, PathBuf};

use super::files::{link, put};
use super::place::Place;

/// A library. Its build lies beside the component's file, if it exists.
struct Extension {
    /// Of the library's file, the linker's option and the package: `lib{name}.so`, `-l{name}`, `{name}.pc`.
    name: &'static str,
    /// The files of the headers, in the folder that the compiler searches, and their texts.
    headers: &'static [(&'static str, &'static str)],
    package: &'static str,
    /// What programs do with it.
    purpose: &'static str,
    description: &'static str,
}

const EXTENSIONS: [Extension; 2] = [
    Extension {
        name: "cableway_mpix",
        headers: &[("cableway_mpix.h", include_str!("../../../ompi/mpix/include/cableway_mpix.h"))],
        package: "cableway-ompi-mpix",
        purpose: "messages in the order of a stream, by MPICH's MPIX calls",
        description: "MPICH's stream extensions for Open MPI with Cableway's component",
    },
    Extension {
        name: "cableway_mp",
        headers: &[
            ("mp.h", include_str!("../../../ompi/mp/include/mp.h")),
            ("mp/device.cuh", include_str!("../../../ompi/mp/include/mp/device.cuh")),
            ("mp/kernel.h", include_str!("../../../ompi/mp/include/mp/kernel.h")),
            ("gdsync.h", include_str!("../../../ompi/mp/include/gdsync.h")),
            ("gdsync/core.h", include_str!("../../../ompi/mp/include/gdsync/core.h")),
            ("gdsync/device.cuh", include_str!("../../../ompi/mp/include/gdsync/device.cuh")),
            ("gdsync/tools.h", include_str!("../../../ompi/mp/include/gdsync/tools.h")),
        ],
        package: "cableway-ompi-mp",
        purpose: "messages in the order of a stream, by LibMP's and LibGDSync's calls",
        description: "LibMP's and LibGDSync's interfaces for Open MPI with Cableway's component",
    },
];

impl Extension {
    /// The file as it is built, and linked with.
    fn library(&self) -> String {
        format!("lib{}.so", self.name)
    }

    /// The name that programs record (`build.rs` of the library).
    fn soname(&self) -> String {
        format!("lib{}.so.0", self.name)
    }

    /// Returns the library, the link to it and the file for pkg-config.
    fn files(&self, place: &Place) -> [PathBuf; 3] {
        [
            place.store.join(self.soname()),
            place.store.join(self.library()),
            folder(place).join(format!("{}.pc", self.name)),
        ]
    }

    fn install(&self, place: &Place, component: &Path) -> Result<String, String> {
        let Extension { name, package, purpose, .. } = self;
        let Ok(built) = fs::read(component.with_file_name(self.library())) else {
            return Ok(format!(
                "{purpose}: {} is not installed; this builds it, for the next install: cargo build --release -p {package}",
                self.library()
            ));
        };
        let [library, linked, config] = self.files(place);
        put(&library, &built)?;
        link(&linked, Path::new(&self.soname()))?;
        for (name, text) in self.headers {
            put(&place.headers().join(name), text.as_bytes())?;
        }
        put(&config, self.config(place).as_bytes())?;
        let (store, headers) = (place.store.display(), place.headers());
        Ok(format!("{purpose}: compile with -I{} -L{store} -l{name} -Wl,-rpath,{store}", headers.display()))
    }

    /// Returns what pkg-config reads.
    fn config(&self, place: &Place) -> String {
        let Extension { name, description, .. } = self;
        format!(
            "prefix={}\n\n\
             Name: {name}\n\
             Description: {description}\n\
             Version: {}\n\
             Libs: -L${{prefix}} -l{name} -Wl,-rpath,${{prefix}}\n\
             Cflags: -I${{prefix}}/include\n",
            place.store.display(),
            env!("CARGO_PKG_VERSION")
        )
    }
}

/// Installs the libraries that lie beside a component's file. Returns a sentence about the use of each.
pub(super) fn install(place: &Place, component: &Path) -> Result<Vec<String>, String> {
    EXTENSIONS.iter().map(|extension| extension.install(place, component)).collect()
}

/// Returns the files that [`install`] writes.
pub(super) fn files(place: &Place) -> Vec<PathBuf> {
    let headers = EXTENSIONS.iter().flat_map(|extension| extension.headers).map(|(name, _)| place.headers().join(name));
    EXTENSIONS.iter().flat_map(|extension| extension.files(place)).chain(headers).collect()
}

/// Returns the folders that they alone use.
pub(super) fn folders(place: &Place) -> [PathBuf; 3] {
    [place.headers().join("mp"), place.headers().join("gdsync"), folder(place)]
}

/// Returns the folder of the files for pkg-config.
fn folder(place: &Place) -> PathBuf {
    place.store.join("pkgconfig")
}

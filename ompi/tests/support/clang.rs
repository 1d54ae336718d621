//! Programs with kernels of their own: clang compiles CUDA C++ with the small toolkit of the simulated driver.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{object, scratch};

const CLANG: &str = "clang-19";

/// The reason why a test cannot run.
pub(crate) const MISSING: &str = "there is no clang-19 to compile kernels";

pub(crate) fn is_there() -> bool {
    Command::new(CLANG).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn toolkit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/sim-cuda/toolkit")
}

/// Returns a source of this package.
fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Makes a file by a command that gets the file's name. Another test that makes it at the same time finds all of it, or none.
fn make(file: &Path, by: impl FnOnce(&Path)) -> PathBuf {
    let fresh = scratch().join(format!("{}.{:?}", std::process::id(), std::thread::current().id()));
    by(&fresh);
    std::fs::rename(&fresh, file).expect("both are in one folder");
    file.to_owned()
}

/// Returns clang with what both parts of CUDA C++ need: the device's, and the host's.
fn clang(source: &Path) -> Command {
    let mut clang = Command::new(CLANG);
    clang.args([
        "-x",
        "cuda",
        "-nocudainc",
        "-nocudalib",
        "--cuda-gpu-arch=sm_52",
        "-Xclang",
        "-target-sdk-version=12.3",
    ]);
    clang.args(["-Wall", "-Wextra", "-Werror", "-include", "cuda_runtime.h", "-DOMPI_SKIP_MPICXX"]);
    clang.arg("-I").arg(toolkit()).arg("-I").arg(self::source("mp/include"));
    for word in run(Command::new("mpicxx").arg("--showme:incdirs")).split_whitespace() {
        clang.args(["-isystem", word]);
    }
    clang.arg(source);
    clang
}

/// Compiles the kernels of a source to PTX, beside the programs of tests.
pub(crate) fn kernels(path: &str) -> PathBuf {
    let source = source(path);
    let file = scratch().join(source.file_name().expect("a file")).with_extension("ptx");
    make(&file, |fresh| {
        let target = ["--cuda-device-only", "-Xclang", "-target-feature", "-Xclang", "+ptx63", "-O2", "-S", "-o"];
        run(clang(&source).args(target).arg(fresh));
    })
}

/// Compiles a program of CUDA C++ that uses LibMP's calls.
pub(crate) fn program(path: &str) -> PathBuf {
    let ptx = kernels(path);
    let source = source(path);
    let built = ptx.with_extension("");
    let part = |suffix: &str, by: &dyn Fn(&Path)| make(&ptx.with_extension(suffix), by);
    let host = part("o", &|fresh| {
        let mut clang = clang(&source);
        clang.args(["--cuda-host-only", "-Xclang", "-fcuda-include-gpubinary", "-Xclang"]).arg(&ptx);
        run(clang.args(["-O1", "-c", "-o"]).arg(fresh));
    });
    let folder = object().parent().expect("a folder").to_owned();
    make(&built, |fresh| {
        let mut link = Command::new("mpicxx");
        link.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(fresh).arg(host).arg(toolkit().join("runtime.cc"));
        link.arg(format!("-L{}", folder.display())).arg("-lcableway_mp");
        let profile = folder.parent().expect("cargo's folder of the profile");
        run(link.arg(format!("-Wl,-rpath,{}", profile.display())).arg("-ldl"));
    })
}

/// Returns the executable of `examples/halo`, with its kernels beside it.
pub(crate) fn halo() -> PathBuf {
    kernels("examples/halo/halo.cu");
    super::linked_with_streams("halo", "../../examples/halo/halo.c", &[])
}

/// Returns the executable of `benches/mp`.
pub(crate) fn mp_bench() -> PathBuf {
    super::linked_with_mp("mp_bench", "../../../benches/mp/mp_bench.c", &[])
}

//! Builds and downloads of peers, kept between runs.

use std::path::PathBuf;
use std::process::Command;

use crate::error::Error;
use crate::process::output_of;

/// Returns the folder of built peers and downloads.
pub(super) fn cache() -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    base.unwrap_or_else(std::env::temp_dir).join("cableway/peers")
}

/// Compiles a C program. Without a compiler, uses the executable of an earlier run or of another machine.
pub(super) fn compiled(name: &str, source: &str, compiler: &str, options: &[&str]) -> Result<PathBuf, Error> {
    let program = cache().join(name);
    let text = program.with_extension("c");
    if output_of(Command::new(compiler).arg("--version")).is_err() {
        let remedy = format!("needs {compiler}, or {} from a machine that has it", program.display());
        return program.exists().then_some(program).ok_or(Error::Missing(remedy));
    }
    std::fs::create_dir_all(cache())
        .and_then(|()| std::fs::write(&text, source))
        .map_err(|source| Error::Write { path: text.clone(), source })?;
    let mut build = Command::new(compiler);
    output_of(build.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(&text).args(options))?;
    Ok(program)
}

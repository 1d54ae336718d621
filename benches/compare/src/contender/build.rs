//! Builds and downloads of peers, kept between runs.

use std::path::PathBuf;
use std::process::Command;

use crate::error::Error;
use crate::process::output_of;

/// Returns the folder of built peers and downloads. A relative path in XDG_CACHE_HOME counts as none, as its
/// specification asks.
pub(super) fn cache() -> PathBuf {
    let absolute = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
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

//! The report in each of its formats, printed or kept.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::{Report, page, tables};
use crate::error::Error;

impl Report {
    pub(crate) fn markdown(&self) -> String {
        tables::markdown(self)
    }

    /// One object a line, in the shape of `cableway pingpong --format json`, with the program and the spread besides.
    pub(crate) fn json(&self) -> String {
        let mut out = String::new();
        for (key, summary) in self.results.all() {
            let line = serde_json::json!({
                "program": key.program, "test": key.test.to_string(), "route": key.route, "size": key.size,
                "value": summary.median, "unit": key.test.unit(),
                "least": summary.least, "greatest": summary.greatest, "takings": summary.takings,
            });
            let _ = writeln!(out, "{line}");
        }
        out
    }

    fn csv(&self) -> String {
        let mut out = String::from("route,test,size,program,value,unit,least,greatest,takings\n");
        for (key, summary) in self.results.all() {
            let (test, unit) = (key.test, key.test.unit());
            let _ = write!(out, "{},{test},{},{},", key.route, key.size, key.program);
            let _ =
                writeln!(out, "{},{unit},{},{},{}", summary.median, summary.least, summary.greatest, summary.takings);
        }
        out
    }

    /// Writes `<date>-<kind of machine>` as `.md`, `.csv` and `.html`. Returns the path without the ending. Replaces
    /// each old file atomically, so that an interrupted run leaves the old or the new one.
    ///
    /// # Errors
    ///
    /// The folder or a file cannot be written, or a drawing cannot be made.
    pub(crate) fn save(&self, folder: &Path) -> Result<PathBuf, Error> {
        let name = format!("{}-{}", self.machine.date, self.machine.kind);
        std::fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.to_owned(), source })?;
        for (kind, text) in [("md", self.markdown()), ("csv", self.csv()), ("html", page::html(self)?)] {
            let path = folder.join(format!("{name}.{kind}"));
            let unfinished = folder.join(format!(".{name}.{kind}"));
            std::fs::write(&unfinished, text)
                .and_then(|()| std::fs::rename(&unfinished, &path))
                .map_err(|source| Error::Write { path, source })?;
        }
        Ok(folder.join(name))
    }
}

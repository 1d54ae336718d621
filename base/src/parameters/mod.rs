//! Run-time parameters: one table (`table.rs`), one row each, from which the typed fields, the environment, the
//! command line, `cableway info` and the component's MCA variables are all made.
//!
//! A parameter `btl_sm_eager_limit` is the field of that name, `CABLEWAY_BTL_SM_EAGER_LIMIT` in the environment,
//! `--set btl_sm_eager_limit=8K` on the command line.

pub mod kind;
mod table;

pub use kind::{CostSource, DefaultStreamOrder, DeviceProtocols, Families, GpuDirect, Kind, SingleCopy, parse_size};
pub use table::Parameters;

use crate::suggest::nearest;

/// Where a parameter's value came from, the strongest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The table's default.
    Default,
    /// An environment variable `CABLEWAY_<NAME>`.
    Environment,
    /// `--set` on a command line, or the host MPI's own variable.
    CommandLine,
    /// A call of the program.
    Program,
}

/// One row of the table, as a user sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Row {
    /// Name, as in `--set NAME=VALUE`.
    pub name: &'static str,
    /// What values look like, such as `size` or `auto|copy`.
    pub kind: &'static str,
    /// The default, as a user would write it.
    pub default: &'static str,
    /// One or more sentences of help.
    pub help: &'static str,
}

/// Why a parameter was not taken.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParameterError {
    /// No row has this name.
    #[error("there is no parameter '{name}'{}", suggestion(*.nearest))]
    Unknown {
        /// The name that was given.
        name: String,
        /// The known name that is closest to it.
        nearest: Option<&'static str>,
    },
    /// The value does not parse.
    #[error("parameter '{name}' cannot be '{value}': {reason}")]
    BadValue {
        /// The parameter.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// What was expected instead.
        reason: String,
    },
    /// An assignment without `=`.
    #[error("'{0}' is no assignment; write NAME=VALUE")]
    NoAssignment(String),
}

fn suggestion(nearest: Option<&str>) -> String {
    match nearest {
        Some(name) => format!("; the nearest is '{name}'"),
        None => "; `cableway info --all` lists them".to_owned(),
    }
}

/// The prefix of environment variables.
pub const ENVIRONMENT_PREFIX: &str = "CABLEWAY_";

/// Variables with the prefix that are no parameters: they steer the launcher and the search for libraries.
const OTHER_VARIABLES: [&str; 6] = ["CUDA_LIBDIR", "BIN", "LOG", "JOB", "SIM_CUDA", "TEST"];

impl Parameters {
    /// The defaults, overridden by this process's environment.
    ///
    /// # Errors
    /// A variable `CABLEWAY_*` that names no parameter or whose value does not parse.
    pub fn from_environment() -> Result<Self, ParameterError> {
        Self::from_variables(
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))),
        )
    }

    /// [`from_environment`](Self::from_environment) over any list of variables.
    ///
    /// # Errors
    /// As there.
    pub fn from_variables(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, ParameterError> {
        let mut parameters = Self::default();
        for (variable, value) in variables {
            let Some(name) = variable.strip_prefix(ENVIRONMENT_PREFIX) else { continue };
            let other = OTHER_VARIABLES
                .iter()
                .any(|other| name == *other || name.strip_prefix(other).is_some_and(|rest| rest.starts_with('_')));
            if !other {
                parameters.set(&name.to_ascii_lowercase(), &value, Source::Environment)?;
            }
        }
        Ok(parameters)
    }

    /// Applies one `NAME=VALUE`.
    ///
    /// # Errors
    /// No `=`, an unknown name, or a value that does not parse.
    pub fn assign(&mut self, assignment: &str, source: Source) -> Result<(), ParameterError> {
        let (name, value) =
            assignment.split_once('=').ok_or_else(|| ParameterError::NoAssignment(assignment.to_owned()))?;
        self.set(name.trim(), value.trim(), source)
    }

    /// Whether somebody has set the parameter, be it to its default. False for a name that is none.
    pub fn is_set(&self, name: &str) -> bool {
        let row = Self::ROWS.iter().position(|row| row.name == name);
        row.is_some_and(|index| self.sources()[index] != Source::Default)
    }

    fn unknown(name: &str) -> ParameterError {
        ParameterError::Unknown { name: name.to_owned(), nearest: nearest(name, Self::ROWS.iter().map(|row| row.name)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_parses_to_what_it_shows() {
        let parameters = Parameters::default();
        for (row, (value, source)) in Parameters::ROWS.iter().zip(parameters.values()) {
            assert_eq!(source, Source::Default, "{}", row.name);
            let mut again = Parameters::default();
            again.set(row.name, &value, Source::Program).unwrap();
            assert_eq!(again.values(), {
                let mut expected = parameters.values();
                let index = Parameters::ROWS.iter().position(|r| r.name == row.name).unwrap();
                expected[index].1 = Source::Program;
                expected
            });
        }
    }

    #[test]
    fn environment_overrides_and_typos_are_named() {
        let set = |name: &str, value: &str| Parameters::from_variables([(name.to_owned(), value.to_owned())]);
        assert_eq!(set("CABLEWAY_BTL_SM_EAGER_LIMIT", "16K").unwrap().btl_sm_eager_limit, 16 << 10);
        assert_eq!(set("CABLEWAY_CUDA_LIBDIR", "/x").unwrap().values(), Parameters::default().values());
        let error = set("CABLEWAY_BTL_SM_EAGR_LIMIT", "16K").unwrap_err();
        assert!(error.to_string().contains("btl_sm_eager_limit"), "{error}");
        let error = set("CABLEWAY_BTL_SM_EAGER_LIMIT", "lots").unwrap_err();
        assert!(error.to_string().contains("'lots'"), "{error}");
    }

    #[test]
    fn what_was_set_is_told_from_what_was_not() {
        let mut parameters = Parameters::default();
        assert!(Parameters::ROWS.iter().all(|row| !parameters.is_set(row.name)));
        parameters.assign("device_push_latency=10us", Source::Environment).unwrap();
        assert!(parameters.is_set("device_push_latency"), "to its default, but set");
        assert!(!parameters.is_set("device_direct_latency") && !parameters.is_set("nonsense"));
    }

    #[test]
    fn assignments() {
        let mut parameters = Parameters::default();
        parameters.assign("device_protocols=copy", Source::CommandLine).unwrap();
        assert_eq!(parameters.device_protocols, DeviceProtocols::Copy);
        assert_eq!(
            parameters.assign("device_protocols", Source::CommandLine),
            Err(ParameterError::NoAssignment("device_protocols".into()))
        );
    }
}

//! Run-time parameters. One table (`table.rs`) has one row for each. The typed fields, the environment variables, the
//! command line, `cableway info` and the component's MCA variables all come from it.
//!
//! The parameter `btl_sm_eager_limit` is the field of that name, `CABLEWAY_BTL_SM_EAGER_LIMIT` in the environment, and
//! `--set btl_sm_eager_limit=8K` on the command line.
//!
//! Internal settings are fields of the same table that no user can know better than a measurement. No list shows them,
//! and [`Parameters::set`] rejects them. Tests change them by [`Parameters::set_internal`]. Where the variable
//! [`FOR_TESTS`] is set, [`Parameters::set`] accepts them.

pub mod kind;
mod table;

pub use kind::{
    Allreduce, CostSource, DefaultStreamOrder, DeviceProtocols, Families, GpuDirect, Kind, Performer, SingleCopy,
    parse_size,
};
pub use table::Parameters;

use crate::suggest::nearest;

/// The source of a parameter's value, from the weakest to the strongest.
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
    /// The form of values, such as `size` or `auto|copy`.
    pub kind: &'static str,
    /// The default, as a user would write it.
    pub default: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// When to change it, and what that costs.
    pub more: &'static str,
}

/// The reason why a parameter was rejected.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParameterError {
    /// No row has this name.
    #[error("there is no parameter '{name}'{}", suggestion(*.nearest))]
    Unknown {
        /// The given name.
        name: String,
        /// The known name that is nearest to it.
        nearest: Option<&'static str>,
    },
    /// The value is invalid.
    #[error("parameter '{name}' cannot be '{value}': {reason}")]
    BadValue {
        /// The parameter.
        name: &'static str,
        /// The given value.
        value: String,
        /// What was expected.
        reason: String,
    },
    /// An assignment without `=`.
    #[error("invalid assignment '{0}': write NAME=VALUE")]
    NoAssignment(String),
}

fn suggestion(nearest: Option<&str>) -> String {
    match nearest {
        Some(name) => format!("; did you mean '{name}'?"),
        None => "; list all by `cableway info --all`".to_owned(),
    }
}

/// The prefix of environment variables.
pub const ENVIRONMENT_PREFIX: &str = "CABLEWAY_";

/// Variables with the prefix that are not parameters: they control the launcher and the search for libraries.
const OTHER_VARIABLES: [&str; 7] = ["CUDA_LIBDIR", "HIP_LIBDIR", "BIN", "LOG", "JOB", "SIM_CUDA", "TEST"];

/// The variable that lets a process and the ranks that it starts set internal settings like parameters.
pub const FOR_TESTS: &str = "CABLEWAY_TEST_INTERNAL";

impl Parameters {
    /// Returns the defaults, overridden by this process's environment.
    ///
    /// # Errors
    /// A variable `CABLEWAY_*` names no parameter, or its value is invalid.
    pub fn from_environment() -> Result<Self, ParameterError> {
        Self::from_variables(
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))),
        )
    }

    /// Does the same as [`from_environment`](Self::from_environment) with the given variables.
    ///
    /// # Errors
    /// The same as those of [`from_environment`](Self::from_environment).
    pub fn from_variables(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, ParameterError> {
        let variables: Vec<_> =
            variables.into_iter().filter(|(name, _)| name.starts_with(ENVIRONMENT_PREFIX)).collect();
        let for_tests = variables.iter().any(|(name, _)| name == FOR_TESTS);
        let mut parameters = Self::default();
        parameters.for_tests = for_tests;
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
    /// The assignment has no `=`, or the name is unknown, or the value is invalid.
    pub fn assign(&mut self, assignment: &str, source: Source) -> Result<(), ParameterError> {
        let (name, value) = split(assignment)?;
        self.set(name, value, source)
    }

    /// Applies one `NAME=VALUE` to a parameter or an internal setting, for tests.
    ///
    /// # Errors
    /// As [`assign`](Self::assign).
    pub fn assign_internal(&mut self, assignment: &str) -> Result<(), ParameterError> {
        let (name, value) = split(assignment)?;
        self.set_internal(name, value)
    }

    /// Returns whether the parameter was set, even if to its default. Returns false for an unknown name.
    pub fn is_set(&self, name: &str) -> bool {
        let row = Self::ROWS.iter().position(|row| row.name == name);
        let internal = Self::INTERNAL.iter().position(|known| *known == name);
        row.is_some_and(|index| self.sources()[index] != Source::Default)
            || internal.is_some_and(|index| self.changed()[index])
    }

    /// Finds a row and its index in the table.
    ///
    /// # Errors
    /// No parameter has this name.
    pub fn find(name: &str) -> Result<(usize, &'static Row), ParameterError> {
        Self::ROWS.iter().enumerate().find(|(_, row)| row.name == name).ok_or_else(|| Self::unknown(name))
    }

    fn unknown(name: &str) -> ParameterError {
        ParameterError::Unknown { name: name.to_owned(), nearest: nearest(name, Self::ROWS.iter().map(|row| row.name)) }
    }
}

fn split(assignment: &str) -> Result<(&str, &str), ParameterError> {
    let (name, value) =
        assignment.split_once('=').ok_or_else(|| ParameterError::NoAssignment(assignment.to_owned()))?;
    Ok((name.trim(), value.trim()))
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
    fn the_environment_overrides_defaults_and_errors_name_typos() {
        let set = |name: &str, value: &str| Parameters::from_variables([(name.to_owned(), value.to_owned())]);
        assert_eq!(set("CABLEWAY_BTL_SM_EAGER_LIMIT", "16K").unwrap().btl_sm_eager_limit, 16 << 10);
        for variable in ["CABLEWAY_CUDA_LIBDIR", "CABLEWAY_HIP_LIBDIR"] {
            assert_eq!(set(variable, "/x").unwrap().values(), Parameters::default().values());
        }
        let error = set("CABLEWAY_BTL_SM_EAGR_LIMIT", "16K").unwrap_err();
        assert!(error.to_string().contains("btl_sm_eager_limit"), "{error}");
        let error = set("CABLEWAY_BTL_SM_EAGER_LIMIT", "lots").unwrap_err();
        assert!(error.to_string().contains("'lots'"), "{error}");
    }

    #[test]
    fn set_parameters_are_told_from_defaults() {
        let mut parameters = Parameters::default();
        assert!(Parameters::ROWS.iter().all(|row| !parameters.is_set(row.name)));
        parameters.assign("peer_timeout=10s", Source::Environment).unwrap();
        parameters.assign_internal("device_push_latency=10us").unwrap();
        assert!(parameters.is_set("peer_timeout"), "it is set, to its default");
        assert!(parameters.is_set("device_push_latency"), "it is set, to its default");
        assert!(!parameters.is_set("device_direct_latency") && !parameters.is_set("nonsense"));
    }

    #[test]
    fn only_tests_change_internal_settings() {
        let mut parameters = Parameters::default();
        assert!(Parameters::INTERNAL.contains(&"btl_sm_fragments"));
        assert!(Parameters::ROWS.iter().all(|row| !Parameters::INTERNAL.contains(&row.name)));
        let unknown = parameters.set("btl_sm_fragments", "5", Source::Program);
        assert!(matches!(unknown, Err(ParameterError::Unknown { .. })), "{unknown:?}");
        parameters.set_internal("btl_sm_fragments", "5").unwrap();
        assert_eq!(parameters.btl_sm_fragments, 5);
        let variable = ("CABLEWAY_BTL_SM_FRAGMENTS".to_owned(), "7".to_owned());
        assert!(Parameters::from_variables([variable.clone()]).is_err());
        let mut parameters = Parameters::from_variables([variable, (FOR_TESTS.to_owned(), String::new())]).unwrap();
        assert_eq!(parameters.btl_sm_fragments, 7);
        parameters.assign("btl_sm_fragments=8", Source::CommandLine).unwrap();
        assert_eq!(parameters.btl_sm_fragments, 8);
    }

    #[test]
    fn every_parameter_has_one_line_of_help_and_more() {
        for row in Parameters::ROWS {
            assert!(row.help.len() < 160 && !row.help.ends_with('.'), "{}: {}", row.name, row.help);
            assert!(row.more.ends_with('.'), "{}: {}", row.name, row.more);
        }
        assert!(
            Parameters::ROWS.len() <= 60,
            "a parameter exists only where a user can know better: {}",
            Parameters::ROWS.len()
        );
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

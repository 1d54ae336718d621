//! The parameters and the origins of their values.

use cableway::{ParameterError, Parameters, Source};

use super::section::{Fact, Section, plain};

pub(super) fn section(parameters: &Parameters, all: bool) -> Section {
    let rows = Parameters::ROWS.iter().zip(parameters.values());
    let shown = rows.filter(|(_, (_, source))| all || *source != Source::Default).map(|(row, (value, source))| {
        vec![
            ("name", row.name.into()),
            ("value", value.into()),
            ("from", describe(source).into()),
            ("default", row.default.into()),
            ("kind", row.kind.into()),
            ("help", row.help.into()),
        ]
    });
    Section::lines("Parameters", shown.collect(), line)
}

/// `name = value (from): help`
fn line(facts: &[Fact]) -> String {
    let fact =
        |wanted| facts.iter().find(|(name, _)| *name == wanted).map(|(_, value)| plain(value)).unwrap_or_default();
    format!("{} = {} ({}, {}): {}", fact("name"), fact("value"), fact("kind"), fact("from"), fact("help"))
}

/// Describes one parameter: its value, what it does, when to change it and what that costs.
pub(super) fn explanation(parameters: &Parameters, name: &str) -> Result<String, ParameterError> {
    let (index, row) = Parameters::find(name)?;
    let (value, source) = parameters.values().swap_remove(index);
    let or_empty = |text: &str| if text.is_empty() { "(empty)".to_owned() } else { text.to_owned() };
    Ok(format!(
        "{name} = {} ({}, {}; default {})\n\n{}.\n{}\n",
        or_empty(&value),
        row.kind,
        describe(source),
        or_empty(row.default),
        row.help,
        row.more
    ))
}

fn describe(source: Source) -> &'static str {
    match source {
        Source::Default => "default",
        Source::Environment => "environment",
        Source::CommandLine => "command line",
        Source::Program => "program",
    }
}

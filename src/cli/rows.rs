//! Rows of results in the formats that commands print.

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Table,
    Csv,
    /// One object a line
    Json,
}

/// Returns the name of a value as the command line takes it.
pub(super) fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The line of a table whose figures are those of a simulated driver.
pub(super) const SIMULATED: &str = "# SIMULATED device: these are not figures of a GPU\n";

/// A named value of a row.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) value: String,
    /// JSON quotes the value.
    text: bool,
}

impl Field {
    pub(super) fn text(name: &'static str, value: impl ToString) -> Self {
        Field { name, value: value.to_string(), text: true }
    }

    /// Makes a number or a boolean.
    pub(super) fn bare(name: &'static str, value: impl ToString) -> Self {
        Field { name, value: value.to_string(), text: false }
    }

    pub(super) fn json(&self) -> String {
        let Field { name, value, text } = self;
        if *text {
            format!(r#""{name}":{}"#, serde_json::Value::from(&**value))
        } else {
            format!(r#""{name}":{value}"#)
        }
    }
}

/// Returns a line of values separated by commas.
pub(super) fn csv<T: AsRef<str>>(cells: impl Iterator<Item = T>) -> String {
    let cells: Vec<_> = cells.collect();
    let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
    cells.join(",") + "\n"
}

/// Returns a line with one JSON object.
pub(super) fn json(fields: &[Field]) -> String {
    let members: Vec<_> = fields.iter().map(Field::json).collect();
    format!("{{{}}}\n", members.join(","))
}

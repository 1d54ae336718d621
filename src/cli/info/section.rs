//! A group of facts, printed for people or as JSON.

use serde_json::{Map, Value};

/// A fact: its name and value.
pub(super) type Fact = (&'static str, Value);

/// Facts under a title.
pub(super) struct Section {
    title: &'static str,
    content: Content,
}

enum Content {
    /// Facts about one thing.
    One(Vec<Fact>),
    /// Facts about several things of a kind, and the function that prints one of them as a line.
    Several(Vec<Vec<Fact>>, fn(&[Fact]) -> String),
}

impl Section {
    pub(super) fn one(title: &'static str, facts: Vec<Fact>) -> Self {
        Section { title, content: Content::One(facts) }
    }

    /// Makes a section of several things. The first fact of each thing is its name.
    pub(super) fn several(title: &'static str, things: Vec<Vec<Fact>>) -> Self {
        Self::lines(title, things, line)
    }

    /// Makes a section of several things, which `line` prints.
    pub(super) fn lines(title: &'static str, things: Vec<Vec<Fact>>, line: fn(&[Fact]) -> String) -> Self {
        Section { title, content: Content::Several(things, line) }
    }

    /// Formats the section as a title and indented lines.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n", self.title);
        match &self.content {
            Content::One(facts) => {
                let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
                for (name, value) in facts {
                    text += &format!("  {:width$}  {}\n", name.replace('_', " "), plain(value));
                }
            }
            Content::Several(things, line) => {
                text.extend(things.iter().map(|facts| format!("  {}\n", line(facts))));
                if things.is_empty() {
                    text += "  none\n";
                }
            }
        }
        text
    }

    fn value(&self) -> Value {
        let object = |facts: &[Fact]| {
            Value::Object(facts.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
        };
        match &self.content {
            Content::One(facts) => object(facts),
            Content::Several(things, _) => things.iter().map(|facts| object(facts)).collect(),
        }
    }
}

/// Formats a thing as `name: this that, other more`.
fn line(facts: &[Fact]) -> String {
    let name = facts.first().map(|(_, value)| plain(value)).unwrap_or_default();
    let rest = facts.iter().skip(1).map(|(name, value)| format!("{} {}", name.replace('_', " "), plain(value)));
    format!("{name}: {}", rest.collect::<Vec<_>>().join(", "))
}

/// Formats all sections as one JSON object with a member for each.
pub(super) fn json(sections: &[Section]) -> String {
    let members = sections.iter().map(|section| (section.title.to_lowercase().replace(' ', "_"), section.value()));
    format!("{}\n", Value::Object(members.collect::<Map<_, _>>()))
}

/// Formats a value for people to read.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::Null => "unknown".to_owned(),
        Value::Array(values) if values.is_empty() => "none".to_owned(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_and_programs_get_the_same() {
        let sections = [
            Section::one("Shared memory", vec![("free_bytes", 5.into()), ("works", true.into())]),
            Section::several("Links", vec![vec![("name", "a".into()), ("speed", Value::Null)]]),
            Section::several("Devices", vec![]),
        ];
        let text = sections.iter().map(Section::text).collect::<String>();
        assert_eq!(
            text,
            "Shared memory\n  free bytes  5\n  works       yes\nLinks\n  a: speed unknown\nDevices\n  none\n"
        );
        assert_eq!(
            serde_json::from_str::<Value>(&json(&sections)).unwrap(),
            serde_json::json!({
                "shared_memory": {"free_bytes": 5, "works": true}, "links": [{"name": "a", "speed": null}], "devices": []
            })
        );
    }
}

//! The PML that Open MPI's parameter `pml` selects.

/// The value of `pml`, and its source.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Selection {
    pub(super) value: String,
    /// The source as `ompi_info` names it: a file, the environment or the default.
    pub(super) source: String,
}

impl Selection {
    /// Parses the output of `ompi_info` about the framework.
    pub(super) fn read(listed: &str) -> Self {
        let of = |what: &str| {
            let start = format!("mca:pml:base:param:pml:{what}:");
            listed.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_default().trim().to_owned()
        };
        Selection { value: of("value"), source: of("source") }
    }

    /// Returns whether the component is used if it can run, and another PML if not.
    pub(super) fn leaves_a_choice(&self) -> bool {
        match self.value.strip_prefix('^') {
            Some(excluded) => !excluded.split(',').any(|name| name == "cableway"),
            None => self.value.is_empty(),
        }
    }

    /// Returns whether no other PML may be used. Open MPI uses the first name of a list.
    pub(super) fn requires_the_component(&self) -> bool {
        self.value.split(',').next() == Some("cableway")
    }

    /// Returns whether an environment variable sets it, which overrides every file.
    pub(super) fn is_from_environment(&self) -> bool {
        self.source.starts_with("environment")
    }
}

impl std::fmt::Display for Selection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pml = {}, from {}", self.value, self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str) -> Selection {
        Selection::read(&format!("mca:pml:base:param:pml:value:{value}\nmca:pml:base:param:pml:source:default\n"))
    }

    #[test]
    fn names_and_exclusions_are_told_apart() {
        for (value, choice, required) in [
            ("", true, false),
            ("^ucx,cm", true, false),
            ("^ucx,cableway", false, false),
            ("cableway", false, true),
            ("cableway,ob1", false, true),
            ("ob1,cableway", false, false),
            ("ob1", false, false),
        ] {
            let selection = of(value);
            assert_eq!(
                (selection.leaves_a_choice(), selection.requires_the_component()),
                (choice, required),
                "{value}"
            );
        }
        assert_eq!(Selection::read("").value, "");
        assert_eq!(of("ob1").to_string(), "pml = ob1, from default");
    }
}

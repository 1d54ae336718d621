//! Cableway's lines in a parameter file of Open MPI.
//!
//! The lines stand between two marks at the end of the file, where they override earlier lines. The rest of the file
//! does not change, and removing the lines restores it byte by byte.

const BEGIN: &str = "# cableway: begin (written by `cableway ompi install`; `cableway ompi uninstall` removes it)";
/// The mark for a file whose last line had no line end.
const BEGIN_AFTER_OPEN_LINE: &str =
    "# cableway: begin, after a line without an end (`cableway ompi uninstall` removes it)";
const END: &str = "# cableway: end";

/// Returns the text with these lines in place of Cableway's old ones. Without lines there are no marks either.
pub(super) fn with(text: &str, lines: &[String]) -> String {
    let mut text = without(text);
    if lines.is_empty() {
        return text;
    }
    let begin = if text.is_empty() || text.ends_with('\n') {
        BEGIN
    } else {
        text.push('\n');
        BEGIN_AFTER_OPEN_LINE
    };
    for line in [begin].into_iter().chain(lines.iter().map(String::as_str)).chain([END]) {
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// Returns the text without Cableway's lines.
pub(super) fn without(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut ours = false;
    for line in text.split_inclusive('\n') {
        match line.trim_end() {
            BEGIN => ours = true,
            BEGIN_AFTER_OPEN_LINE => {
                ours = true;
                kept.pop();
            }
            END if ours => ours = false,
            _ if ours => {}
            _ => kept.push_str(line),
        }
    }
    // The end mark was removed: everything after the beginning mark might belong to the user.
    if ours { text.to_owned() } else { kept }
}

/// Returns whether the text has Cableway's lines.
pub(super) fn has_ours(text: &str) -> bool {
    text.lines().any(|line| line == BEGIN || line == BEGIN_AFTER_OPEN_LINE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines() -> Vec<String> {
        vec!["pml = cableway".to_owned()]
    }

    #[test]
    fn our_lines_come_last() {
        let text = with("pml = ob1\n", &lines());
        assert_eq!(text, format!("pml = ob1\n{BEGIN}\npml = cableway\n{END}\n"));
        assert!(has_ours(&text) && !has_ours("pml = ob1\n"));
    }

    #[test]
    fn lines_of_an_earlier_installation_are_replaced() {
        let once = with("a = b\n", &["pml = other".to_owned()]);
        assert_eq!(with(&once, &lines()), with("a = b\n", &lines()));
        assert_eq!(with(&once, &[]), "a = b\n");
    }

    #[test]
    fn without_an_end_nothing_is_removed() {
        let broken = format!("a = b\n{BEGIN}\npml = cableway\nc = d\n");
        assert_eq!(without(&broken), broken);
    }

    proptest! {
        #[test]
        fn what_was_there_comes_back(text in "([a-z= #\\r]{0,12}\n){0,4}[a-z =]{0,8}") {
            prop_assert_eq!(without(&with(&text, &lines())), text);
        }

        #[test]
        fn what_is_added_later_stays(before in "([a-z =]{0,8}\n){0,3}", after in "([a-z =]{0,8}\n){0,3}") {
            let text = with(&before, &lines()) + &after;
            prop_assert_eq!(without(&text), before + &after);
        }
    }
}

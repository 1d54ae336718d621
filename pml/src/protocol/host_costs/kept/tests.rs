use super::*;

struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("cableway-host-costs-{name}-{}", std::process::id())))
    }

    fn kept(&self) -> Kept {
        let mut parameters = Parameters::default();
        parameters.assign_internal(&format!("costs_folder={}", self.0.display())).unwrap();
        Kept::new(&parameters)
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.join(file_name())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const ROW: Row = [Some(150.0), None, Some(110.0), None, Some(70.0)];

#[test]
fn costs_are_kept_for_the_next_job() {
    let scratch = Scratch::new("next");
    let kept = scratch.kept();
    assert_eq!(kept.rows(Distance::SharedL3, Pattern::Single), None);
    kept.save();
    assert!(!scratch.0.exists(), "nothing is new");
    kept.note((Distance::SharedL3, Pattern::Single), 2, &ROW);
    kept.save();
    let next = scratch.kept();
    let rows = next.rows(Distance::SharedL3, Pattern::Single).unwrap();
    assert_eq!((rows[2], rows[1]), (ROW, Row::default()));
    assert_eq!(next.rows(Distance::SharedL3, Pattern::Window), None);
    assert_eq!(next.rows(Distance::Node, Pattern::Single), None);
}

#[test]
fn processes_add_to_what_others_wrote() {
    let scratch = Scratch::new("add");
    let [first, second] = [scratch.kept(), scratch.kept()];
    for kept in [&first, &second] {
        assert_eq!(kept.rows(Distance::Node, Pattern::Single), None, "both have read");
    }
    first.note((Distance::Node, Pattern::Single), 0, &[Some(200.0), None, None, None, None]);
    second.note((Distance::Node, Pattern::Single), 0, &[None, Some(90.0), None, None, None]);
    second.note((Distance::SharedL2, Pattern::Single), 1, &ROW);
    first.save();
    second.save();
    let next = scratch.kept();
    assert_eq!(next.rows(Distance::Node, Pattern::Single).unwrap()[0], [Some(200.0), Some(90.0), None, None, None]);
    assert_eq!(next.rows(Distance::SharedL2, Pattern::Single).unwrap()[1], ROW);
}

#[test]
fn only_what_differs_is_written() {
    let scratch = Scratch::new("differs");
    let kept = scratch.kept();
    kept.note((Distance::SharedL3, Pattern::Single), 2, &ROW);
    kept.save();
    std::fs::remove_file(scratch.file()).unwrap();
    kept.note((Distance::SharedL3, Pattern::Single), 2, &[Some(155.0), None, Some(110.0), None, Some(70.0)]);
    kept.save();
    assert!(!scratch.file().exists(), "a difference of a thirtieth");
    kept.note((Distance::SharedL3, Pattern::Single), 2, &[Some(190.0), None, None, None, None]);
    kept.save();
    assert!(scratch.file().exists());
}

#[test]
fn files_of_another_boot_and_malformed_files_are_ignored() {
    let table = Table::from(Pattern::ALL.map(|pattern| ((Distance::SharedL3, pattern), [ROW; CLASSES])));
    let text = write("here", &table);
    assert_eq!(read(&text, "here"), Ok(table));
    assert_eq!(read(&text, "there"), Ok(Table::new()));
    assert_eq!(read(&text.replace("format 3", "format 4"), "here"), Ok(Table::new()));
    assert!(read(text.trim_end().strip_suffix("end").unwrap(), "here").is_err());
    for (from, to) in [
        ("l3 single 16384", "l4 single 16384"),
        ("l3 single 16384", "l3 double 16384"),
        ("l3 single 16384", "l3 single 16385"),
        ("150 - 110 - 70", "150 - 110 - 70 1"),
        ("150 - 110 - 70", "150 - 110 -"),
        ("150 - 110", "0 - 110"),
        ("150 - 110", "-1 - 110"),
        ("150 - 110", "9999999999999 - 110"),
    ] {
        assert!(read(&text.replacen(from, to, 1), "here").is_err(), "{to}");
    }
}

#[test]
fn nothing_is_read_or_written_without_trials() {
    let scratch = Scratch::new("none");
    let kept = scratch.kept();
    kept.note((Distance::SharedL3, Pattern::Single), 2, &ROW);
    kept.save();
    let mut parameters = Parameters::default();
    for setting in [format!("costs_folder={}", scratch.0.display()), "pml_host_trials=0".to_owned()] {
        parameters.assign_internal(&setting).unwrap();
    }
    assert_eq!(Kept::new(&parameters).rows(Distance::SharedL3, Pattern::Single), None);
}

//! The machine that the figures were measured on.

use std::fs;
use std::process::Command;

use crate::Subject;
use crate::contender::Contender;
use crate::process::output_of;

pub(crate) struct Machine {
    /// ISO 8601.
    pub(crate) date: String,
    /// The processor and the number of cores, for file names.
    pub(crate) kind: String,
    /// Names and values of facts about the machine, in the order to print.
    pub(crate) facts: Vec<(String, String)>,
}

pub(crate) fn describe(contenders: &[Box<dyn Contender>], subject: &Subject) -> Machine {
    let date = said(Command::new("date").args(["-u", "+%Y-%m-%d"]));
    let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
    let model = processor();
    let mut facts = vec![
        ("date".to_owned(), date.clone()),
        ("processor".to_owned(), format!("{model}, {cores} cores")),
        ("memory".to_owned(), memory()),
        ("devices".to_owned(), devices(subject)),
        ("kernel".to_owned(), said(Command::new("uname").args(["-sr"]))),
        ("load before".to_owned(), load()),
        ("command".to_owned(), command_line()),
    ];
    for contender in contenders {
        let description = contender.describe();
        facts.push((contender.name().to_owned(), format!("{}; `{}`", description.version, description.command)));
    }
    Machine { kind: slug(&format!("{model}-{cores}-cores")), date, facts }
}

/// Returns the processor with family and model, because virtual machines hide the name.
fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
        line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, value)| value.trim()).to_owned()
    };
    format!("{} (family {}, model {})", field("model name"), field("cpu family"), field("model"))
}

fn memory() -> String {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes = total.and_then(|total| total.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.map_or_else(|| "unknown".to_owned(), |kibibytes| format!("{} GiB", kibibytes >> 20))
}

/// Returns the devices with the driver's release, which only `nvidia-smi` prints.
fn devices(subject: &Subject) -> String {
    if subject.simulated {
        return format!("{} **simulated**: figures about them are meaningless", subject.devices);
    }
    let mut ask = Command::new("nvidia-smi");
    let said = output_of(ask.args(["--query-gpu=name,driver_version", "--format=csv,noheader"])).unwrap_or_default();
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    let alike = lines.chunk_by(|one, next| one == next).map(|run| format!("{} x {}", run.len(), run[0]));
    let shown = alike.collect::<Vec<_>>().join("; ");
    if shown.is_empty() { subject.devices.to_string() } else { shown }
}

/// Returns the load of the minutes before, which shows whether the machine was idle.
fn load() -> String {
    fs::read_to_string("/proc/loadavg").map(|load| load.trim().to_owned()).unwrap_or_else(|_| "unknown".to_owned())
}

fn command_line() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    format!("`cableway {}`", arguments.join(" "))
}

fn said(command: &mut Command) -> String {
    output_of(command).map_or_else(|_| "unknown".to_owned(), |said| said.trim().to_owned())
}

/// Converts a text to lower case, with dashes for everything but letters and digits.
fn slug(text: &str) -> String {
    let words = text.split(|character: char| !character.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_slug_suits_a_file_name() {
        assert_eq!(super::slug("AMD EPYC (family 25, model 17)-2-cores"), "amd-epyc-family-25-model-17-2-cores");
    }
}

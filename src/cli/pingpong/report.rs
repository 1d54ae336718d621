//! What is printed, by rank 0 only.

use std::io::{IsTerminal, Write};

use cableway::DeviceIndex;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};

use super::kind::MemoryKind;
use super::plan::Test;
use crate::cli::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Csv,
    /// One object a line
    Json,
}

/// What all rows have in common.
pub(crate) struct Header {
    pub(crate) test: Test,
    pub(crate) btl: String,
    pub(crate) kinds: [MemoryKind; 2],
    pub(crate) devices: [Option<DeviceIndex>; 2],
    pub(crate) simulated: bool,
    pub(crate) beside_devices: bool,
    pub(crate) layout: Option<String>,
    pub(crate) window: u32,
    pub(crate) check: bool,
}

impl Header {
    pub(crate) fn unit(&self) -> &'static str {
        match self.test {
            Test::Latency => "us",
            Test::Bandwidth | Test::Bidirectional => "MB/s",
            Test::MessageRate => "messages/s",
        }
    }

    /// The value's column, as users of OSU's benchmarks know it.
    pub(crate) fn column(&self) -> &'static str {
        match self.test {
            Test::Latency => "Latency (us)",
            Test::Bandwidth | Test::Bidirectional => "Bandwidth (MB/s)",
            Test::MessageRate => "Messages/s",
        }
    }

    /// One line that says what was measured.
    pub(crate) fn title(&self) -> String {
        let side = |rank: usize| match self.devices[rank] {
            Some(DeviceIndex(number)) if self.kinds[rank] == MemoryKind::Host => format!("host beside device {number}"),
            Some(DeviceIndex(number)) => format!("{} {number}", name(self.kinds[rank])),
            None => name(self.kinds[rank]),
        };
        let mut title = format!("{} over {}, {} to {}", name(self.test), self.btl, side(0), side(1));
        if let Some(layout) = &self.layout {
            title += &format!(", {layout}");
        }
        if self.test != Test::Latency {
            title += &format!(", window {}", self.window);
        }
        title
    }
}

/// A value's name on the command line.
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

pub(crate) struct Report {
    format: Format,
    pub(crate) header: Header,
    pub(crate) rows: Vec<(u64, f64)>,
    prints: bool,
    bar: ProgressBar,
}

impl Report {
    /// `sizes` to come; nothing is printed by a rank that does not print.
    pub(crate) fn new(format: Format, header: Header, sizes: usize, prints: bool) -> Self {
        let bar = if prints && std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
            ProgressBar::new(sizes as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        } else {
            ProgressBar::hidden()
        };
        Report { format, header, rows: Vec::new(), prints, bar }
    }

    /// Prints what comes before the first row.
    pub(crate) fn begin(&self) -> Result<(), Failure> {
        let header = &self.header;
        match self.format {
            Format::Table => {
                let mut lines = format!("# Cableway {}\n", header.title());
                if header.simulated {
                    lines += "# SIMULATED device: these are no figures of a GPU\n";
                }
                if header.check {
                    lines += "# Every message is checked; times include that\n";
                }
                self.print(&format!("{lines}{:<12}{:>20}\n", "# Size", header.column()))
            }
            Format::Csv => self.print(&format!("test,btl,src,dst,size,value,unit{}\n", self.extra_columns())),
            Format::Json => Ok(()),
        }
    }

    /// Shows which size is being measured.
    pub(crate) fn measuring(&self, size: u64) {
        self.bar.set_message(format!("{size} bytes"));
    }

    pub(crate) fn row(&mut self, size: u64, value: f64) -> Result<(), Failure> {
        self.rows.push((size, value));
        self.bar.inc(1);
        let header = &self.header;
        let (test, btl) = (name(header.test), &header.btl);
        let [src, dst] = header.kinds.map(name);
        let value = round(value);
        self.print(&match self.format {
            Format::Table => format!("{size:<12}{value:>20.2}\n"),
            Format::Csv => {
                let mut line = format!("{test},{btl},{src},{dst},{size},{value},{}", header.unit());
                if let Some(layout) = &header.layout {
                    line += &format!(",{layout}");
                }
                if header.beside_devices {
                    line += ",true";
                }
                if header.check {
                    line += ",pass";
                }
                if header.simulated {
                    line += ",true";
                }
                line + "\n"
            }
            Format::Json => {
                let text = |text: &str| serde_json::Value::from(text).to_string();
                let mut line = format!(
                    r#"{{"test":"{test}","btl":{},"src":"{src}","dst":"{dst}","size":{size},"value":{value},"unit":"{}""#,
                    text(btl),
                    header.unit(),
                );
                if let Some(layout) = &header.layout {
                    line += &format!(r#","datatype":{}"#, text(layout));
                }
                if header.beside_devices {
                    line += r#","beside_devices":true"#;
                }
                if header.check {
                    line += r#","check":"pass""#;
                }
                if header.simulated {
                    line += r#","simulated":true"#;
                }
                line + "}\n"
            }
        })
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }

    fn extra_columns(&self) -> String {
        let columns = [
            (self.header.layout.is_some(), ",datatype"),
            (self.header.beside_devices, ",beside_devices"),
            (self.header.check, ",check"),
            (self.header.simulated, ",simulated"),
        ];
        columns.into_iter().filter(|(present, _)| *present).map(|(_, column)| column).collect()
    }

    fn print(&self, text: &str) -> Result<(), Failure> {
        if !self.prints {
            return Ok(());
        }
        let written = self.bar.suspend(|| {
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        });
        written.map_err(|error| Failure::failed(1, format!("printing results: {error}")))
    }
}

/// Two digits after the point, four below ten: a small latency must not lose what programs compare.
fn round(value: f64) -> f64 {
    let scale = if value < 10.0 { 10_000.0 } else { 100.0 };
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_values_keep_their_digits() {
        assert_eq!(round(0.183_49), 0.1835);
        assert_eq!(round(4210.237), 4210.24);
    }

    #[test]
    fn titles_name_what_was_measured() {
        let mut header = Header {
            test: Test::Latency,
            btl: "sm".into(),
            kinds: [MemoryKind::Host, MemoryKind::Device],
            devices: [None, Some(DeviceIndex(1))],
            simulated: false,
            beside_devices: false,
            layout: None,
            window: 64,
            check: false,
        };
        assert_eq!(header.title(), "latency over sm, host to device 1");
        header.devices[0] = Some(DeviceIndex(0));
        assert_eq!(header.title(), "latency over sm, host beside device 0 to device 1");
        header.devices[0] = None;
        header.test = Test::MessageRate;
        header.layout = Some("vector:1:2:3".into());
        assert_eq!(header.title(), "message-rate over sm, host to device 1, vector:1:2:3, window 64");
    }
}

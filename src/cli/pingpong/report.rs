//! Printing of results, by rank 0 only.

use std::io::IsTerminal;

use cableway::DeviceIndex;
use indicatif::{ProgressBar, ProgressStyle};

use super::kind::MemoryKind;
use super::plan::Test;
use super::stream::StreamPlan;
use crate::cli::rows::{Field, Format, SIMULATED, csv, json, name};
use crate::cli::{Failure, output};

/// The description of a measurement, which all rows share.
pub(crate) struct Header {
    pub(crate) test: Test,
    pub(crate) btl: String,
    pub(crate) kinds: [MemoryKind; 2],
    pub(crate) devices: [Option<DeviceIndex>; 2],
    pub(crate) simulated: bool,
    pub(crate) beside_devices: bool,
    pub(crate) layout: Option<String>,
    pub(crate) window: u32,
    pub(crate) threads: u32,
    /// Whether each thread has a worker of its own.
    pub(crate) workers: bool,
    pub(crate) check: bool,
    pub(crate) stream: Option<StreamPlan>,
}

impl Header {
    pub(crate) fn unit(&self) -> &'static str {
        match self.test {
            Test::Latency | Test::Put | Test::Get | Test::Am | Test::Register => "us",
            Test::Bandwidth | Test::Bidirectional => "MB/s",
            Test::MessageRate | Test::AmRate => "messages/s",
            Test::PutRate => "puts/s",
            Test::GetRate => "gets/s",
        }
    }

    /// Returns the title of the value's column, as the OSU benchmarks print it.
    pub(crate) fn column(&self) -> &'static str {
        match self.test {
            Test::Latency | Test::Put | Test::Get | Test::Am => "Latency (us)",
            Test::Register => "Time (us)",
            Test::Bandwidth | Test::Bidirectional => "Bandwidth (MB/s)",
            Test::MessageRate | Test::AmRate => "Messages/s",
            Test::PutRate => "Puts/s",
            Test::GetRate => "Gets/s",
        }
    }

    /// Returns the title and the field name of each value besides the test's.
    fn others(&self) -> &'static [(&'static str, &'static str)] {
        self.stream.as_ref().map_or(&[], StreamPlan::columns)
    }

    /// Returns one line that describes the measurement.
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
        if self.test.has_window() {
            title += &format!(", window {}", self.window);
        }
        if self.threads > 1 {
            title += &format!(", {} threads", self.threads);
        }
        if self.workers {
            title += ", a worker each";
        }
        if let Some(stream) = &self.stream {
            title += &format!(", {}", stream.title());
        }
        title
    }
}

/// Returns a value's name on the command line.
pub(crate) struct Report {
    format: Format,
    pub(crate) header: Header,
    pub(crate) rows: Vec<(u64, f64)>,
    prints: bool,
    bar: ProgressBar,
}

impl Report {
    /// Makes a report of `sizes` rows. It prints nothing if `prints` is false.
    pub(crate) fn new(format: Format, header: Header, sizes: usize, prints: bool) -> Self {
        let bar = if prints && std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
            ProgressBar::new(sizes as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        } else {
            ProgressBar::hidden()
        };
        Report { format, header, rows: Vec::new(), prints, bar }
    }

    /// Prints the lines before the first row.
    pub(crate) fn begin(&self) -> Result<(), Failure> {
        let header = &self.header;
        match self.format {
            Format::Table => {
                let mut lines = format!("# Cableway {}\n", header.title());
                if header.simulated {
                    lines += SIMULATED;
                }
                if header.check {
                    lines += "# Every message is checked; times include that\n";
                }
                let titles: String = header.others().iter().map(|(title, _)| format!("{title:>16}")).collect();
                self.print(&format!("{lines}{:<12}{:>20}{titles}\n", "# Size", header.column()))
            }
            Format::Csv => {
                let others = vec![String::new(); header.others().len()];
                self.print(&csv(self.fields(0, 0.0, others).into_iter().map(|field| field.name)))
            }
            Format::Json => Ok(()),
        }
    }

    /// Shows which size is being measured.
    pub(crate) fn measuring(&self, size: u64) {
        self.bar.set_message(format!("{size} bytes"));
    }

    /// Prints a row. `others` are the values besides the test's.
    pub(crate) fn row(&mut self, size: u64, value: f64, others: Vec<String>) -> Result<(), Failure> {
        self.rows.push((size, value));
        self.bar.inc(1);
        let value = round(value);
        self.print(&match self.format {
            Format::Table => {
                let others: String = others.iter().map(|value| format!("{value:>16}")).collect();
                format!("{size:<12}{value:>20.2}{others}\n")
            }
            Format::Csv => csv(self.fields(size, value, others).into_iter().map(|field| field.value)),
            Format::Json => json(&self.fields(size, value, others)),
        })
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// Returns the fields of a row. All rows of a report have the same ones.
    fn fields(&self, size: u64, value: f64, others: Vec<String>) -> Vec<Field> {
        let header = &self.header;
        let [src, dst] = header.kinds.map(name);
        let mut fields = vec![
            Field::text("test", name(header.test)),
            Field::text("btl", header.btl.clone()),
            Field::text("src", src),
            Field::text("dst", dst),
            Field::bare("size", size),
            Field::bare("value", value),
            Field::text("unit", header.unit()),
        ];
        fields.extend(header.stream.map(|stream| Field::text("stream", name(stream.mode))));
        fields.extend(header.others().iter().zip(others).map(|(&(_, name), value)| match value.parse::<f64>() {
            Ok(_) => Field::bare(name, value),
            Err(_) => Field::text(name, value),
        }));
        fields.extend(header.layout.as_ref().map(|layout| Field::text("datatype", layout)));
        fields.extend((header.threads > 1).then(|| Field::bare("threads", header.threads)));
        fields.extend(header.workers.then(|| Field::bare("workers", true)));
        fields.extend(header.beside_devices.then(|| Field::bare("beside_devices", true)));
        fields.extend(header.check.then(|| Field::text("check", "pass")));
        fields.extend(header.simulated.then(|| Field::bare("simulated", true)));
        fields
    }

    fn print(&self, text: &str) -> Result<(), Failure> {
        if !self.prints {
            return Ok(());
        }
        self.bar.suspend(|| output::print(text))
    }
}

/// Rounds to two digits after the point, and to four below ten, so that small latencies stay comparable.
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
    fn csv_and_json_have_the_same_fields() {
        let header = Header {
            test: Test::Latency,
            btl: "sm".into(),
            kinds: [MemoryKind::Host; 2],
            devices: [None; 2],
            simulated: true,
            beside_devices: false,
            layout: Some("vector:1:2:3".into()),
            window: 1,
            threads: 2,
            workers: false,
            check: true,
            stream: None,
        };
        let report = Report::new(Format::Csv, header, 1, false);
        let fields = report.fields(8, 1.0, vec![]);
        let names = csv(fields.iter().map(|field| field.name));
        assert_eq!(names, "test,btl,src,dst,size,value,unit,datatype,threads,check,simulated\n");
        let values = csv(fields.iter().map(|field| &field.value));
        assert_eq!(values, "latency,sm,host,host,8,1,us,vector:1:2:3,2,pass,true\n");
        let json: Vec<_> = fields[4..].iter().map(Field::json).collect();
        let expected =
            r#""size":8,"value":1,"unit":"us","datatype":"vector:1:2:3","threads":2,"check":"pass","simulated":true"#;
        assert_eq!(json.join(","), expected);
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
            threads: 1,
            workers: false,
            check: false,
            stream: None,
        };
        assert_eq!(header.title(), "latency over sm, host to device 1");
        header.devices[0] = Some(DeviceIndex(0));
        assert_eq!(header.title(), "latency over sm, host beside device 0 to device 1");
        header.devices[0] = None;
        header.test = Test::MessageRate;
        header.layout = Some("vector:1:2:3".into());
        assert_eq!(header.title(), "message-rate over sm, host to device 1, vector:1:2:3, window 64");
        (header.threads, header.workers) = (2, true);
        let threads = "message-rate over sm, host to device 1, vector:1:2:3, window 64, 2 threads, a worker each";
        assert_eq!(header.title(), threads);
    }
}

//! The costs of copies by devices, and their origin.

use std::time::Duration;

use cableway::{CopyCost, CostOrigin, CostReport, Devices, Known};
use serde_json::Value;

use super::section::{Fact, Section};

/// Lists the costs of copies. With `measure`, unknown costs are measured first.
pub(super) fn sections(devices: &Devices, measure: bool) -> Vec<Section> {
    // The section on the driver tells why there are no devices.
    let Ok(facts) = devices.facts() else { return Vec::new() };
    let all: Vec<_> = facts.devices.iter().map(|device| device.index).collect();
    let reports = match devices.report_costs(if measure { &all } else { &[] }) {
        Ok(reports) => reports,
        Err(error) => return vec![Section::one("Costs", vec![("reason", error.to_string().into())])],
    };
    vec![
        Section::several("Costs", reports.iter().map(device).collect()),
        Section::several("Costs between devices", reports.iter().flat_map(others).collect()),
    ]
}

fn device(report: &CostReport) -> Vec<Fact> {
    let origin = match &report.origin {
        CostOrigin::File { path, measured } => format!("measured {measured}, in {}", path.display()),
        CostOrigin::Default(reason) => format!("the estimates among the parameters: {reason}"),
        _ => String::new(),
    };
    let costs = &report.costs;
    vec![
        ("device", format!("device {}", report.device.0).into()),
        ("origin", origin.into()),
        ("to_host", copy(costs.to_host)),
        ("from_host", copy(costs.from_host)),
        ("within", copy(costs.within)),
        ("each_call", known(costs.call, time)),
        ("short_rows", known(costs.rows_per_second, |rate| format!("{:.0} M/s", rate * 1e-6))),
        ("each_of_several", known(costs.several, time)),
        ("several_by_kernel", copy(costs.kernel)),
    ]
}

fn others(report: &CostReport) -> Vec<Vec<Fact>> {
    let line = |peer: &cableway::PeerCosts| {
        let uuid: String = peer.device.iter().map(|byte| format!("{byte:02x}")).collect();
        vec![
            ("devices", Value::from(format!("device {} and {uuid}", report.device.0))),
            ("push", copy(peer.push)),
            ("pull", copy(peer.pull)),
        ]
    };
    report.costs.peers.iter().map(line).collect()
}

fn copy(cost: Known<CopyCost>) -> Value {
    known(cost, |cost| format!("{} and {:.1} GB/s", time(cost.latency), cost.bytes_per_second * 1e-9))
}

fn time(time: Duration) -> String {
    format!("{:.2} us", time.as_secs_f64() * 1e6)
}

fn known<T>(known: Known<T>, show: impl FnOnce(T) -> String) -> Value {
    match known {
        Known::Nothing => "not measured".into(),
        Known::Refused => "refused".into(),
        Known::Is(figure) => show(figure).into(),
    }
}

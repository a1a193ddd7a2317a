//! Every page, whatever its input, is well-formed, needs no other file, and draws inside its plots.

use super::bars::BAR_LEFT;
use super::lines::{BOTTOM, LEFT, RIGHT, TOP, WIDTH};
use super::*;
use crate::experiment::Experiment;
use crate::scenario::Scenario;
use flashweir_sim::measure::RunResult;
use roxmltree::{Document, Node, ParsingOptions};
use std::sync::atomic::AtomicBool;

/// Runs of a scenario with courses.
fn runs(devices: &[&str], seeds: u32, workloads: &str) -> Vec<RunResult> {
    let mut text =
        format!("name = 'x'\nseeds = {seeds}\nprecondition = {{ mode = 'instant', overwrite = 0.5 }}\n");
    for name in devices {
        text += &format!(
            "[[device]]\npreset = 'barrier-ufs'\nname = '{name}'\ngeometry.blocks_per_plane = 32\n\
             ftl.over_provisioning = 0.3\n"
        );
    }
    let scenario = Scenario::parse("x.toml", &(text + workloads), &[], &|_| Err("no files".into()));
    let mut experiment = Experiment::new(scenario.unwrap_or_else(|e| panic!("{e}"))).unwrap();
    experiment.keep_courses();
    let outcomes = experiment.run(1, &AtomicBool::new(false), &|_| ()).expect("nobody cancels");
    outcomes.into_iter().map(|outcome| outcome.result).collect()
}

fn workload(name: &str, options: &str) -> String {
    format!("[[workload]]\nname = '{name}'\nfio_inline = '''\n[j]\nbs=4k\n{options}\n'''\n")
}

fn page(runs: &[RunResult]) -> String {
    let html = Report { title: "A <title> & more".into(), runs, ..Report::default() }.html();
    check(&html);
    html
}

/// Checks all invariants of a page.
fn check(html: &str) {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(html, options).unwrap_or_else(|e| panic!("{e}"));
    for reference in ["http:", "https:", "src=", "href=", "url(", "@import", "fetch("] {
        assert!(!html.contains(reference), "a page needs no other file: {reference}");
    }
    let svgs: Vec<Node> = document.descendants().filter(|node| node.has_tag_name("svg")).collect();
    let is = |svg: &&Node, class: &str| svg.attribute("class") == Some(class);
    for svg in svgs.iter().filter(|svg| is(svg, "plot")) {
        for group in svg.descendants().filter(|node| node.attribute("data-name").is_some()) {
            for path in group.children().filter_map(|node| node.attribute("d")) {
                inside(path);
            }
        }
        let scales = [svg.attribute("data-x"), svg.attribute("data-y")];
        for word in scales.into_iter().flatten().flat_map(|scale| scale.split(' ').skip(1).take(4)) {
            assert!(word.parse::<f64>().is_ok_and(f64::is_finite), "{word}");
        }
    }
    for svg in svgs.iter().filter(|svg| !is(svg, "sample")) {
        for node in svg.descendants().filter(|node| node.has_tag_name("text")) {
            fits(&node);
        }
        for attribute in svg.descendants().flat_map(|node| node.attributes()) {
            let bad = ["NaN", "inf", "e+", "e-"].iter().any(|bad| attribute.value().contains(bad));
            let is_number =
                ["d", "x", "y", "width", "height", "cx", "cy", "viewBox"].contains(&attribute.name());
            assert!(!(is_number && bad), "{} = {}", attribute.name(), attribute.value());
        }
    }
}

/// Checks that every corner of a path lies in the plot.
fn inside(path: &str) {
    let mut horizontal = true;
    let mut letter = 'M';
    for word in path
        .replace(['M', 'L'], " P")
        .replace('H', " H")
        .replace('V', " V")
        .replace('Z', "")
        .split_whitespace()
    {
        let (kind, number) = match word.strip_prefix(['P', 'H', 'V']) {
            Some(number) => (word.chars().next().unwrap(), number),
            None => (letter, word),
        };
        letter = kind;
        let value: f64 = number.parse().unwrap_or_else(|_| panic!("{word} in {path}"));
        let is_x = match kind {
            'H' => true,
            'V' => false,
            // Coordinates come in pairs.
            _ => {
                horizontal = !horizontal;
                !horizontal
            }
        };
        let (low, high) = if is_x { (LEFT, RIGHT) } else { (TOP, BOTTOM) };
        assert!((low - 0.01..=high + 0.01).contains(&value), "{value} is outside {low} to {high}: {path}");
    }
}

/// Checks that a text ends inside its picture, by an upper bound of the mean width of letters.
fn fits(node: &Node) {
    let class = node.attribute("class").unwrap_or("");
    let x: f64 = node.attribute("x").unwrap().parse().unwrap();
    let text = node.text().unwrap_or("");
    let letter = if class.contains("title") { 7.2 } else { 6.4 };
    let width = text.chars().count() as f64 * letter;
    let (low, high) = match class {
        c if c.contains("end") => (x - width, x),
        c if c.contains("middle") => (x - width / 2.0, x + width / 2.0),
        _ => (x, x + width),
    };
    let end = if class == "name" { BAR_LEFT } else { WIDTH + 1.0 };
    assert!(low >= -1.0 && high <= end, "`{text}` reaches from {low} to {high}");
}

/// Ids of the figures on a page.
fn ids(html: &str) -> Vec<&str> {
    html.split("<figure id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

#[test]
fn variants_stand_side_by_side() {
    let workloads = workload("mixed", "rw=randrw\niodepth=8\nfsync=16\nnumber_ios=3000\nramp_time=2ms")
        + &workload("write", "rw=randwrite\niodepth=32\nnumber_ios=6000");
    let runs = runs(&["a", "b"], 2, &workloads);
    let html = page(&runs);
    let all = [
        "headline",
        "throughput",
        "percentiles",
        "latency",
        "depth",
        "inflight",
        "waf",
        "wafs",
        "gc",
        "buffer",
        "heat",
        "wear",
    ];
    assert_eq!(ids(&html), all);
    assert_eq!(html, page(&runs), "a page is a function of its input");
    for panel in
        ["mixed · read", "mixed · flush · p99.9", "write · write · p50", "write · blocks erased", "a · write"]
    {
        assert!(html.contains(&format!(">{panel}</text>")), "{panel}");
    }
    // There is a line for each variant in each panel of throughput, and bands, because there are two seeds.
    let throughput =
        html.split("<figure id=\"throughput\"").nth(1).unwrap().split("</figure>").next().unwrap();
    assert_eq!(throughput.matches("class=\"plot\"").count(), 4);
    assert_eq!(throughput.matches("data-name=\"\"").count(), 8);
    assert!(throughput.contains("class=\"band\"") && html.contains("A &lt;title&gt; &amp; more"));
}

#[test]
fn one_device_under_several_workloads_shares_panels() {
    let workloads = workload("deep", "rw=randread\niodepth=16\nnumber_ios=500")
        + &workload("flat", "rw=randread\nnumber_ios=500");
    let html = page(&runs(&["a"], 1, &workloads));
    let throughput =
        html.split("<figure id=\"throughput\"").nth(1).unwrap().split("</figure>").next().unwrap();
    assert_eq!(
        (throughput.matches("class=\"plot\"").count(), throughput.matches("data-name=\"\"").count()),
        (1, 2)
    );
    assert_eq!(
        ids(&html),
        ["headline", "throughput", "percentiles", "latency", "depth", "inflight", "heat", "wear"]
    );
    assert!(html.contains("<b>Write amplification:</b> The host wrote nothing."));
    assert!(!html.contains("class=\"band\""), "one seed has no spread");
}

#[test]
fn jobs_of_one_file_stay_apart() {
    let two =
        workload("two", "rw=randread\niodepth=4\nnumber_ios=2000\n[k]\nbs=16k\nrw=randrw\nnumber_ios=900");
    let results = runs(&["a", "b"], 1, &two);
    let course = results[0].course.as_deref().unwrap();
    let sum = |requests: &[flashweir_sim::measure::Requests]| {
        requests.iter().map(|r| r.count.iter().sum::<u64>()).sum::<u64>()
    };
    let apart: Vec<(&str, u64)> =
        course.jobs.iter().map(|job| (job.name.as_str(), sum(&job.requests))).collect();
    assert_eq!(apart, [("j", 2000), ("k", 900)]);
    assert_eq!(sum(&course.requests), 2900);
    let html = page(&results);
    for panel in ["j · read", "k · read", "k · write", "k · write · p99", "j · read · p50"] {
        assert!(html.contains(&format!(">{panel}</text>")), "{panel}");
    }
    assert!(!html.contains(">j · write</text>") && html.contains(">k, b</text>"));
    let throughput =
        html.split("<figure id=\"throughput\"").nth(1).unwrap().split("</figure>").next().unwrap();
    assert_eq!(throughput.matches("class=\"plot\"").count(), 3);
    assert_eq!(throughput.matches("data-name=\"\"").count(), 6, "two devices in each");
    // Too many jobs share one line, and the page says so.
    let many: String = (0..9).map(|i| format!("[x{i}]\nbs=4k\nrw=randread\nnumber_ios=50\n")).collect();
    let results = runs(&["a"], 1, &workload("many", &format!("rw=randread\nnumber_ios=50\n{many}")));
    assert!(results[0].course.as_deref().unwrap().jobs.is_empty());
    let html = page(&results);
    assert!(html.contains("More than 8 jobs are shown as one.") && html.contains(">read</text>"));
}

#[test]
fn variants_differ_by_more_than_colour() {
    let looks: std::collections::BTreeSet<String> = (0..64).map(lines::looks).collect();
    assert_eq!(looks.len(), 64);
    let dashes: std::collections::BTreeSet<String> =
        (0..8).map(|variant| lines::looks(variant).split(' ').nth(2).unwrap().to_owned()).collect();
    assert_eq!(dashes.len(), 8);
    let html = page(&runs(&["a", "b"], 1, &workload("w", "rw=randread\nnumber_ios=100")));
    let legend = html.split("<nav").nth(1).unwrap().split("</nav>").next().unwrap();
    assert!(legend.contains("line c0 d0") && legend.contains("line c1 d1"));
    let (picture, numbers) = (html.find("id=\"headline\"").unwrap(), html.find("<table").unwrap());
    assert!(picture < numbers, "a picture stands before the numbers");
}

#[test]
fn long_names_many_variants_and_short_runs_fit() {
    let names: Vec<String> = (0..30)
        .map(|i| format!("a device with <&\"> in a name that is far too long for any legend, number {i}"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let workload = workload(
        "a workload whose name does not fit above a panel of a report either",
        "rw=randwrite\nnumber_ios=1",
    );
    let html = page(&runs(&names, 1, &workload));
    assert_eq!(html.matches("class=\"chip\"").count(), 30);
    // Names that differ at their end still differ when they are shortened.
    assert!(html.contains("number 7<") && html.contains("number 29<"));
}

#[test]
fn little_is_enough() {
    page(&[]);
    page(&[RunResult::default()]);
    page(&[flashweir_sim::measure::testing::run(1), flashweir_sim::measure::testing::random_run(2)]);
    let mut without_time = RunResult { device: "d".into(), ..RunResult::default() };
    without_time
        .metrics
        .insert("device.host_units_written".into(), flashweir_sim::measure::MetricValue::Count(1));
    let html = page(&[without_time]);
    assert_eq!(ids(&html), ["waf"]);
    let points = vec![(0.1, 3.0), (0.2, 0.0)];
    let curve = |is_reference| Curve { name: "c".into(), points: points.clone(), is_reference };
    let panel = CurvePanel {
        title: "p".into(),
        result: "y".into(),
        curves: vec![curve(false), curve(true), curve(false)],
    };
    let curves = |is_logarithmic, panels| Curves {
        title: "t".into(),
        caption: String::new(),
        parameter: "x".into(),
        is_logarithmic,
        panels,
    };
    let both =
        Report { curves: vec![curves(true, vec![panel.clone(), panel.clone()])], ..Report::default() }.html();
    check(&both);
    let html = Report { curves: vec![curves(false, vec![panel])], ..Report::default() }.html();
    check(&html);
    let field = html.split("class=\"field\"").nth(1).unwrap().split("</svg>").next().unwrap();
    assert_eq!(field.matches("c0 d0").count(), 2, "a reference has the colour of its curve");
    assert_eq!(field.matches("c1 d1").count(), 1);
}

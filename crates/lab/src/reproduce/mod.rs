//! What papers claim, and whether it comes out here.
//!
//! Place in the data flow: a claim is a table of a file in `claims/`: one quantity of a study, the paper's value, and the
//! band in which it counts as reproduced (presets §2). A study is code that builds stacks and measures them; it
//! knows no claim. The command line runs the studies that the claims name and shows every verdict.
//!
//! Invariants: a band is in the file and nowhere else; a verdict outside of its band is a result like any other.
//!
//! Deliberately absent: tuning. A study's parameters come from the paper, by way of the specs, and are named in it.

mod barrier;
mod rflush;

pub use barrier::device_of as barrier_device;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// How much of the paper's set-up is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Small enough for seconds.
    Quick,
    /// The paper's sizes.
    Full,
}

impl Scale {
    /// How often each run is repeated with another seed, if nobody says otherwise: the papers have medians of several runs.
    pub const fn seeds(self) -> u32 {
        match self {
            Self::Quick => 1,
            Self::Full => 5,
        }
    }
}

/// One measurement of a study: a variant at one value of the study's parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The variant, as in `RFLUSH`.
    pub variant: &'static str,
    /// The parameter.
    pub x: f64,
    /// What was measured, by name; the medians over the seeds.
    pub metrics: BTreeMap<&'static str, f64>,
}

/// A study: what is measured, and how.
#[derive(Clone, Copy, Debug)]
pub struct Study {
    /// Its name in claims.
    pub name: &'static str,
    /// What is run, in one sentence.
    pub what: &'static str,
    /// What of the paper's set-up is missing, in one sentence.
    pub missing: &'static str,
    /// Name and unit of the parameter.
    pub parameter: &'static str,
    /// Metrics with their units, for people and for figures.
    pub metrics: &'static [(&'static str, &'static str)],
    /// The variants, in the paper's order.
    pub variants: &'static [&'static str],
    /// Values of the parameter.
    pub points: fn(Scale) -> Vec<f64>,
    /// Measures one variant, at one value, with one seed.
    pub measure: fn(usize, f64, u64, Scale) -> Vec<f64>,
}

/// One run that a study needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    variant: usize,
    x: f64,
    seed: u64,
}

impl Study {
    /// Everything that has to be run, in order, with this many seeds. The runs are independent of each other.
    pub fn runs(&self, scale: Scale, seeds: u32) -> Vec<Run> {
        let mut runs = Vec::new();
        for x in (self.points)(scale) {
            for variant in 0..self.variants.len() {
                runs.extend((1..=u64::from(seeds)).map(|seed| Run { variant, x, seed }));
            }
        }
        runs
    }

    /// Does one of them; one value for each metric.
    pub fn run(&self, run: Run, scale: Scale) -> Vec<f64> {
        (self.measure)(run.variant, run.x, run.seed, scale)
    }

    /// The medians over the seeds; `done` has the results of [`Self::runs`] in their order.
    pub fn rows(&self, scale: Scale, seeds: u32, done: &[Vec<f64>]) -> Vec<Row> {
        let runs = self.runs(scale, seeds);
        assert_eq!(runs.len(), done.len(), "each run has a result");
        let of_one = runs.chunks(seeds as usize).zip(done.chunks(seeds as usize));
        of_one
            .map(|(runs, results)| {
                let median = |metric: usize| {
                    let mut values: Vec<f64> = results.iter().map(|result| result[metric]).collect();
                    values.sort_by(f64::total_cmp);
                    values[values.len() / 2]
                };
                let metrics = self.metrics.iter().enumerate().map(|(at, (name, _))| (*name, median(at)));
                Row { variant: self.variants[runs[0].variant], x: runs[0].x, metrics: metrics.collect() }
            })
            .collect()
    }
}

/// A figure of a paper whose axes are not those of a study: of what its first variant reaches, the share that others do.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// The study.
    pub study: &'static str,
    /// Which figure of the paper.
    pub title: &'static str,
    /// The metric.
    pub metric: &'static str,
    /// What the first variant reaches, with its unit: the axis.
    pub axis: &'static str,
    /// The paper's curve: its variant, and the share in percent that it has where the first variant reaches so much.
    pub paper: (&'static str, fn(f64) -> f64),
}

/// The figures that papers have on such axes.
pub const SHARES: &[Shares] = &[barrier::FIGURE_1];

impl Shares {
    /// The curve of each variant but the first: what that one reaches, and the share in percent, ascending.
    pub fn curves(&self, rows: &[Row]) -> Vec<(&'static str, Vec<(f64, f64)>)> {
        let first = rows.first().map_or("", |row| row.variant);
        let reached = |row: &Row| row.metrics.get(self.metric).copied().unwrap_or(f64::NAN);
        let all: BTreeMap<u64, f64> = rows
            .iter()
            .filter(|row| row.variant == first)
            .map(|row| (row.x.to_bits(), reached(row)))
            .collect();
        let mut curves: Vec<(&'static str, Vec<(f64, f64)>)> = Vec::new();
        for row in rows.iter().filter(|row| row.variant != first) {
            let Some(&whole) = all.get(&row.x.to_bits()) else { continue };
            let point = (whole, 100.0 * reached(row) / whole);
            match curves.iter_mut().find(|(variant, _)| *variant == row.variant) {
                Some((_, points)) => points.push(point),
                None => curves.push((row.variant, vec![point])),
            }
        }
        curves.iter_mut().for_each(|(_, points)| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
        curves
    }
}

/// One claim of a paper.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Its name, as in presets §2.1.
    pub id: String,
    /// Figure or table of the paper.
    pub figure: String,
    /// What is claimed.
    pub text: String,
    /// The study that shows it.
    pub study: String,
    /// The metric of the study.
    pub metric: String,
    /// The variant.
    pub of: String,
    /// … over this one; without it, the metric itself.
    pub over: Option<String>,
    /// At this value of the study's parameter.
    pub at: f64,
    /// The paper's value, in its words.
    pub paper: String,
    /// The band: at least …
    pub least: Option<f64>,
    /// … and at most.
    pub most: Option<f64>,
}

/// A file of claims.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Authors, title, year.
    pub paper: String,
    /// Its claims.
    pub claim: Vec<Claim>,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Inside the band.
    Reproduced,
    /// Outside of it.
    Outside,
    /// The study has no such value at this scale.
    NotMeasured,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reproduced => "reproduced",
            Self::Outside => "OUTSIDE",
            Self::NotMeasured => "not measured",
        })
    }
}

impl Paper {
    /// Checks that each claim is about what a study measures, and says where it is from.
    ///
    /// # Errors
    /// The first claim of which that is not so.
    pub fn check(&self, studies: &[Study]) -> Result<(), String> {
        for claim in &self.claim {
            let wrong = |what: &str| Err(format!("{}: {what}", claim.id));
            let Some(study) = studies.iter().find(|study| study.name == claim.study) else {
                return wrong("no such study");
            };
            let has = |variant: &str| study.variants.contains(&variant);
            let (least, most) = (claim.least.unwrap_or(f64::MIN), claim.most.unwrap_or(f64::MAX));
            let is_measured = |scale| (study.points)(scale).contains(&claim.at);
            let sources = [&claim.figure, &claim.text, &claim.paper];
            match () {
                () if self.claim.iter().filter(|other| other.id == claim.id).count() != 1 => {
                    return wrong("a claim has a name of its own");
                }
                () if !study.metrics.iter().any(|(metric, _)| *metric == claim.metric) => {
                    return wrong("no such metric");
                }
                () if !has(&claim.of) || !claim.over.as_deref().is_none_or(has) => {
                    return wrong("no such variant");
                }
                () if ![Scale::Quick, Scale::Full].into_iter().all(is_measured) => {
                    return wrong("nothing is measured there");
                }
                () if claim.least.is_none() && claim.most.is_none() => return wrong("no band"),
                () if least >= most => return wrong("nothing is in its band"),
                () if sources.iter().any(|source| source.trim().is_empty()) => {
                    return wrong("it does not say where it is from");
                }
                () => {}
            }
        }
        Ok(())
    }
}

impl Claim {
    /// The quantity that the claim is about.
    pub fn value(&self, rows: &[Row]) -> Option<f64> {
        let metric = |variant: &str| {
            let row = rows.iter().find(|row| row.variant == variant && row.x == self.at)?;
            row.metrics.get(self.metric.as_str()).copied()
        };
        let value = match &self.over {
            Some(over) => metric(&self.of)? / metric(over)?,
            None => metric(&self.of)?,
        };
        value.is_finite().then_some(value)
    }

    /// Whether the value is in the band.
    pub fn verdict(&self, value: Option<f64>) -> Verdict {
        match value {
            None => Verdict::NotMeasured,
            Some(value)
                if self.least.is_none_or(|least| value >= least)
                    && self.most.is_none_or(|most| value <= most) =>
            {
                Verdict::Reproduced
            }
            Some(_) => Verdict::Outside,
        }
    }

    /// The band in words.
    pub fn band(&self) -> String {
        match (self.least, self.most) {
            (Some(least), Some(most)) => format!("{least} to {most}"),
            (Some(least), None) => format!("≥ {least}"),
            (None, Some(most)) => format!("≤ {most}"),
            (None, None) => "any".into(),
        }
    }
}

/// The papers that can be reproduced: name, claims, studies.
const PAPERS: [(&str, &str, &[Study]); 2] = [
    ("rflush", include_str!("../../claims/rflush.toml"), rflush::STUDIES),
    ("barrier", include_str!("../../claims/barrier.toml"), barrier::STUDIES),
];

/// Names of the papers.
pub fn names() -> impl Iterator<Item = &'static str> {
    PAPERS.iter().map(|(name, ..)| *name)
}

/// Claims and studies of a paper.
pub fn paper(name: &str) -> Option<(Paper, &'static [Study])> {
    let (_, text, studies) = PAPERS.iter().find(|(known, ..)| *known == name)?;
    Some((toml::from_str(text).expect("a test reads every file of claims"), studies))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_claim_names_what_its_study_measures() {
        for name in names() {
            let (paper, studies) = paper(name).unwrap();
            assert!(!paper.claim.is_empty() && !paper.paper.is_empty());
            let known: BTreeSet<&str> = studies.iter().map(|study| study.name).collect();
            assert_eq!(known.len(), studies.len(), "{name}: a study has a name of its own");
            assert_eq!(paper.check(studies), Ok(()), "{name}");
        }
    }

    #[test]
    fn a_claim_about_nothing_is_refused() {
        let (paper, studies) = paper("rflush").unwrap();
        let refused =
            |claim: Claim| Paper { paper: String::new(), claim: vec![claim] }.check(studies).is_err();
        let claim = &paper.claim[0];
        assert!(!refused(claim.clone()));
        assert!(refused(Claim { study: "nothing".into(), ..claim.clone() }));
        assert!(refused(Claim { metric: "nothing".into(), ..claim.clone() }));
        assert!(refused(Claim { of: "nobody".into(), ..claim.clone() }));
        assert!(refused(Claim { at: -1.0, ..claim.clone() }));
        assert!(refused(Claim { least: None, most: None, ..claim.clone() }));
        assert!(refused(Claim { least: Some(2.0), most: Some(1.0), ..claim.clone() }));
        assert!(refused(Claim { text: " ".into(), ..claim.clone() }));
    }

    #[test]
    fn a_verdict_is_what_the_band_says() {
        let (paper, _) = paper("rflush").unwrap();
        let claim = Claim { least: Some(2.0), most: Some(3.0), over: None, ..paper.claim[0].clone() };
        let row =
            |value| Row { variant: "RFLUSH", x: claim.at, metrics: BTreeMap::from([("sync_iops", value)]) };
        for (value, verdict) in [
            (1.99, Verdict::Outside),
            (2.0, Verdict::Reproduced),
            (3.0, Verdict::Reproduced),
            (3.01, Verdict::Outside),
            (f64::NAN, Verdict::NotMeasured),
        ] {
            assert_eq!(claim.verdict(claim.value(&[row(value)])), verdict, "{value}");
        }
        assert_eq!(claim.verdict(claim.value(&[])), Verdict::NotMeasured);
        assert_eq!(claim.band(), "2 to 3");
    }
}

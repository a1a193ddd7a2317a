//! Claims of papers, and whether they are reproduced here.
//!
//! Place in the data flow: a claim is a table in a file of `claims/`: one quantity of a study, the paper's value, and the
//! band in which it counts as reproduced (presets §2). A study is code that builds stacks and measures them; it
//! knows no claims. The command line runs the studies that the claims name and shows every verdict.
//!
//! Invariants: a band is in the file and nowhere else; a value outside its band is a result like any other.
//!
//! Deliberately absent: tuning. A study's parameters come from the paper, through the specs, and the study names them.

mod amf;
mod barrier;
mod qblke;
mod rflush;
mod share;
mod study;

pub use barrier::device_of as barrier_device;
use serde::{Deserialize, Serialize};
use std::fmt;
pub use study::{RATE_CALLS_MIN, Row, Run, Scale, Shares, Study, micros};

/// Figures of papers whose axes are not those of a study.
pub const SHARES: &[Shares] = &[barrier::FIGURE_1];

/// One claim of a paper.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Name of the claim, as in presets §2.1.
    pub id: String,
    /// Figure or table of the paper.
    pub figure: String,
    /// The claim in words.
    pub text: String,
    /// Name of the study that measures it.
    pub study: String,
    /// Name of the study's metric.
    pub metric: String,
    /// Variant whose metric is the value.
    pub of: String,
    /// Variants by whose metric the value is divided, if any.
    pub over: Option<Over>,
    /// Value of the study's parameter; without one `take` says what becomes of all of them.
    pub at: Option<f64>,
    /// Another one, by whose value the one at `at` is divided first.
    pub over_at: Option<f64>,
    /// What becomes of several values.
    #[serde(default)]
    pub take: Take,
    /// The paper's value, in its words.
    pub paper: String,
    /// Lower end of the band.
    pub least: Option<f64>,
    /// Upper end of the band.
    pub most: Option<f64>,
}

/// One variant, or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Over {
    /// One.
    One(String),
    /// Several, each of which gives a value.
    Each(Vec<String>),
}

impl Over {
    /// Their names.
    pub fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Each(names) => names,
        }
    }
}

/// What becomes of the values at all values of the parameter, and over several variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Take {
    /// The mean counts.
    #[default]
    Mean,
    /// The largest one does.
    Most,
    /// The smallest one does.
    Least,
}

/// What a claim's value is here.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ours {
    /// The value, of medians over the seeds.
    pub value: f64,
    /// The smallest and the largest one over the seeds.
    pub spread: (f64, f64),
    /// Where it is, if it is the largest or the smallest of several.
    pub place: Option<Place>,
}

/// A value of a study's parameter, and the variant that was divided by.
pub type Place = (f64, Option<String>);

/// A file of claims.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Authors, title, year.
    pub paper: String,
    /// Claims of the paper.
    pub claim: Vec<Claim>,
}

/// Verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The value is inside the band.
    Reproduced,
    /// The value is outside the band.
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
    /// Checks that each claim names what a study measures, has a band, and gives its source.
    ///
    /// # Errors
    /// The first claim that fails.
    pub fn check(&self, studies: &[Study]) -> Result<(), String> {
        for claim in &self.claim {
            let wrong = |what: &str| Err(format!("{}: {what}", claim.id));
            let Some(study) = studies.iter().find(|study| study.name == claim.study) else {
                return wrong("no such study");
            };
            let has = |variant: &str| study.variants.contains(&variant);
            let (least, most) = (claim.least.unwrap_or(f64::MIN), claim.most.unwrap_or(f64::MAX));
            let is_measured = |scale: Scale| {
                let points = (study.points)(scale);
                claim.at.iter().chain(&claim.over_at).all(|at| points.contains(at))
            };
            let sources = [&claim.figure, &claim.text, &claim.paper];
            match () {
                () if self.claim.iter().filter(|other| other.id == claim.id).count() != 1 => {
                    return wrong("a claim has a name of its own");
                }
                () if !study.metrics.iter().any(|(metric, _)| *metric == claim.metric) => {
                    return wrong("no such metric");
                }
                () if !has(&claim.of) || !claim.over.iter().flat_map(Over::names).all(|name| has(name)) => {
                    return wrong("no such variant");
                }
                () if ![Scale::Quick, Scale::Full].into_iter().all(is_measured) => {
                    return wrong("nothing is measured there");
                }
                () if claim.least.is_none() && claim.most.is_none() => return wrong("no band"),
                () if claim.over_at.is_some() && claim.at.is_none() => return wrong("`over_at` needs `at`"),
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
    /// Value that the claim is about.
    pub fn value(&self, rows: &[Row]) -> Option<Ours> {
        let (value, place) = self.value_of(rows, &|row, metric| row.metrics.get(metric).copied())?;
        let seeds = rows.first()?.seeds.values().next().map_or(0, Vec::len);
        let of_seed =
            |seed: usize| self.value_of(rows, &move |row, metric| row.seeds.get(metric)?.get(seed).copied());
        let values = (0..seeds).filter_map(of_seed).map(|(value, _)| value);
        let spread = values.fold((value, value), |(least, most), value| (least.min(value), most.max(value)));
        Some(Ours { value, spread, place })
    }

    /// The value and its place, with the measurements that `get` returns.
    fn value_of(
        &self,
        rows: &[Row],
        get: &dyn Fn(&Row, &str) -> Option<f64>,
    ) -> Option<(f64, Option<Place>)> {
        let at = |variant: &str, x: f64| {
            let row = rows.iter().find(|row| row.variant == variant && row.x == x)?;
            get(row, &self.metric)
        };
        let metric = |variant: &str, x: f64| match self.over_at {
            Some(over_at) => Some(at(variant, x)? / at(variant, over_at)?),
            None => at(variant, x),
        };
        let points: Vec<f64> = match self.at {
            Some(x) => vec![x],
            None => rows.iter().filter(|row| row.variant == self.of).map(|row| row.x).collect(),
        };
        let mut all = Vec::new();
        for x in points {
            let of = metric(&self.of, x)?;
            match &self.over {
                None => all.push((of, (x, None))),
                Some(over) => {
                    for over in over.names() {
                        all.push((of / metric(over, x)?, (x, Some(over.clone()))));
                    }
                }
            }
        }
        // Without one of them nothing is the least or the most.
        if !all.iter().all(|(value, _)| value.is_finite()) {
            return None;
        }
        let first = |order: fn(&f64, &f64) -> std::cmp::Ordering| {
            let (value, place) = all.iter().min_by(|a, b| order(&a.0, &b.0))?;
            Some((*value, (all.len() > 1).then(|| place.clone())))
        };
        let (value, place) = match self.take {
            Take::Mean => (all.iter().map(|(value, _)| value).sum::<f64>() / all.len() as f64, None),
            Take::Most => first(|a, b| b.total_cmp(a))?,
            Take::Least => first(f64::total_cmp)?,
        };
        value.is_finite().then_some((value, place))
    }

    /// Verdict on a value.
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

/// Papers that can be reproduced: name, claims, studies.
const PAPERS: [(&str, &str, &[Study]); 5] = [
    ("rflush", include_str!("../../claims/rflush.toml"), rflush::STUDIES),
    ("barrier", include_str!("../../claims/barrier.toml"), barrier::STUDIES),
    ("share", include_str!("../../claims/share.toml"), share::STUDIES),
    ("amf", include_str!("../../claims/amf.toml"), amf::STUDIES),
    ("qblke", include_str!("../../claims/qblke.toml"), qblke::STUDIES),
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
    use std::collections::BTreeMap;
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
        assert!(refused(Claim { at: Some(-1.0), ..claim.clone() }));
        assert!(refused(Claim { least: None, most: None, ..claim.clone() }));
        assert!(refused(Claim { least: Some(2.0), most: Some(1.0), ..claim.clone() }));
        assert!(refused(Claim { text: " ".into(), ..claim.clone() }));
    }

    #[test]
    fn a_verdict_is_what_the_band_says() {
        let (paper, _) = paper("rflush").unwrap();
        let claim = Claim { least: Some(2.0), most: Some(3.0), over: None, ..paper.claim[0].clone() };
        let row_at = |x, value| Row {
            variant: "RFLUSH",
            x,
            metrics: BTreeMap::from([("sync_iops", value)]),
            seeds: BTreeMap::from([("sync_iops", vec![value, value + 1.0])]),
        };
        let row = |value| row_at(claim.at.unwrap(), value);
        for (value, verdict) in [
            (1.99, Verdict::Outside),
            (2.0, Verdict::Reproduced),
            (3.0, Verdict::Reproduced),
            (3.01, Verdict::Outside),
            (f64::NAN, Verdict::NotMeasured),
        ] {
            let ours = claim.value(&[row(value)]).map(|ours| ours.value);
            assert_eq!(claim.verdict(ours), verdict, "{value}");
        }
        assert_eq!(claim.value(&[]), None);
        assert_eq!(claim.verdict(None), Verdict::NotMeasured);
        let rows = [row_at(1.0, 2.0), row_at(8.0, 5.0)];
        let all = Claim { at: None, ..claim.clone() };
        let mean = Ours { value: 3.5, spread: (3.5, 4.5), place: None };
        assert_eq!(all.value(&rows), Some(mean));
        assert_eq!(all.value(&[]), None);
        let most = Claim { take: Take::Most, over: Some(Over::Each(vec!["RFLUSH".into()])), ..all.clone() };
        let place = Some((1.0, Some("RFLUSH".to_owned())));
        assert_eq!(most.value(&rows), Some(Ours { value: 1.0, spread: (1.0, 1.0), place }));
        let least = Claim { take: Take::Least, ..all };
        assert_eq!(least.value(&rows).unwrap().place, Some((1.0, None)));
        let grown = Claim { at: Some(8.0), over_at: Some(1.0), ..claim.clone() };
        assert_eq!(grown.value(&rows), Some(Ours { value: 2.5, spread: (2.0, 2.5), place: None }));
        assert_eq!(claim.band(), "2 to 3");
        // Without one of them there is neither a least nor a most, whatever the sign of what is no number.
        for missing in [f64::NAN, -f64::NAN] {
            let rows = [row_at(1.0, 2.0), row_at(8.0, missing)];
            for take in [Take::Least, Take::Most, Take::Mean] {
                assert_eq!(Claim { at: None, take, ..claim.clone() }.value(&rows), None);
            }
        }
    }
}

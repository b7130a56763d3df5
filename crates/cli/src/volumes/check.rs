//! `adit check`: the problems of a volume, and `--repair`.

use crate::arguments::{Check, VolumeArguments};
use crate::output::Outcome;
use crate::output::interrupt;
use crate::output::progress::Progress;
use crate::output::{self, ask};
use adit::{Errno, Error, Finding, RepairReport, Repaired};
use serde::Serialize;
use std::borrow::Cow;
use std::io::Write;

#[derive(Serialize)]
struct CheckLine<'a> {
    clean: bool,
    repaired: bool,
    directories: u64,
    files: u64,
    orphans: u64,
    blobs: u64,
    problems: Vec<ProblemLine<'a>>,
    problems_omitted: u64,
}

#[derive(Serialize)]
struct ProblemLine<'a> {
    kind: &'static str,
    place: String,
    page: Option<u64>,
    inode: Option<u64>,
    path: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    text: &'a str,
    consequence: &'a str,
    repairable: bool,
    repair: Option<&'a str>,
}

impl<'a> From<&'a Finding> for ProblemLine<'a> {
    fn from(finding: &'a Finding) -> Self {
        ProblemLine {
            kind: finding.kind.word(),
            place: finding.place(),
            page: finding.page,
            inode: finding.slot,
            path: finding.path.as_ref().map(|path| path.to_string_lossy()),
            path_bytes: finding.path.as_deref().and_then(output::bytes_unless_text),
            text: &finding.what,
            consequence: &finding.consequence,
            repairable: finding.repair.is_some(),
            repair: finding.repair.as_deref(),
        }
    }
}

pub(crate) fn check(arguments: &Check, options: &VolumeArguments) -> adit::Result<Outcome> {
    interrupt::say(if arguments.repair {
        "a repair that has begun is finished by the same command"
    } else {
        "a check changes nothing; the same command begins anew"
    });
    let outcome = if arguments.repair {
        repair(arguments, options)
    } else {
        examine(arguments, options)
    };
    let outcome = match outcome {
        // Nothing in it can be believed: that is a finding, not a failure.
        Err(error) if error.errno() == Errno::UCLEAN => {
            let finding = Finding::new(
                adit::FindingKind::Superblock,
                error.to_string(),
                "the volume can't be opened",
                "",
            );
            let mut report = RepairReport::default();
            report.findings.add(finding.beyond_repair());
            Repaired::examined(report)
        }
        outcome => outcome?,
    };
    tell(arguments, &outcome)?;
    Ok(if outcome.left.is_empty() {
        Outcome::Done
    } else {
        Outcome::Problems
    })
}

fn examine(arguments: &Check, options: &VolumeArguments) -> adit::Result<Repaired> {
    let progress = Progress::steps();
    let report = options.examine(&arguments.volume, |done, total| {
        progress.step("checking", done as f64 / total.max(1) as f64);
    })?;
    Ok(Repaired::examined(report))
}

fn repair(arguments: &Check, options: &VolumeArguments) -> adit::Result<Repaired> {
    let progress = Progress::steps();
    let confirm = |report: &RepairReport| {
        if arguments.yes {
            return Ok(true);
        }
        let mut question = String::new();
        for finding in &report.findings.list {
            question.push_str(&sentence(finding));
            question.push('\n');
        }
        let found = count(report);
        let answer = ask(&format!(
            "{question}{found} found. Repair {}?",
            arguments.volume
        ))?;
        answer.ok_or_else(|| {
            let what = format!(
                "repair {}: {found} found; --yes repairs without asking, without --repair they are shown",
                arguments.volume
            );
            Error::with(Errno::CANCELED, what)
        })
    };
    options.repair(&arguments.volume, confirm, |done, total| {
        progress.step("repairing", done as f64 / total.max(1) as f64);
    })
}

fn count(report: &RepairReport) -> String {
    match report.findings.list.len() as u64 + report.findings.omitted {
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    }
}

/// A finding with its repair.
fn sentence(finding: &Finding) -> String {
    let repair = match &finding.repair {
        Some(repair) => format!("repair: {repair}"),
        None => "it can't be repaired".to_owned(),
    };
    output::plain(&format!("{finding}; {repair}")).into_owned()
}

fn tell(arguments: &Check, outcome: &Repaired) -> adit::Result<()> {
    let report = &outcome.report;
    let mut out = output::stdout();
    if arguments.json {
        let line = CheckLine {
            clean: outcome.left.is_empty(),
            repaired: outcome.done,
            directories: report.directories,
            files: report.files,
            orphans: report.orphans,
            blobs: report.blobs,
            problems: report.findings.list.iter().map(ProblemLine::from).collect(),
            problems_omitted: report.findings.omitted,
        };
        return output::json(&mut out, &line);
    }
    for finding in &report.findings.list {
        writeln!(out, "{}", sentence(finding))?;
    }
    if report.findings.omitted > 0 {
        writeln!(out, "and {} more", report.findings.omitted)?;
    }
    let verdict = match (report.is_clean(), outcome.done, outcome.left.len()) {
        (true, ..) => "clean".to_owned(),
        (false, true, 0) => format!("{} repaired", count(report)),
        (false, true, left) => {
            format!("{} repaired as far as possible, {left} left", count(report))
        }
        (false, false, _) => count(report),
    };
    writeln!(
        out,
        "{}: {verdict}; {} directories, {} files, {} blobs, {} orphans",
        arguments.volume, report.directories, report.files, report.blobs, report.orphans
    )?;
    Ok(())
}

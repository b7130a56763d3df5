//! `adit compare`, and `adit measure`, which it starts.

use crate::arguments::{Compare, SuiteArgument};
use crate::output::Outcome;
use crate::output::progress::Progress;
use crate::output::{self, ask};
use adit::{Errno, Error};
use adit_bench::{CompareOptions, Suite, System};
use std::io::{BufRead, Write};

pub(crate) fn compare(arguments: Compare) -> adit::Result<Outcome> {
    let with: std::io::Result<Vec<System>> = arguments
        .with
        .iter()
        .map(|name| System::kernel(name))
        .collect();
    let options = CompareOptions {
        device: arguments.device,
        overwrite: arguments.force,
        with: with?,
        suite: match arguments.suite {
            SuiteArgument::Quick => Suite::Quick,
            SuiteArgument::Full => Suite::Full,
        },
        only: arguments.only,
        images: arguments.images,
        repetitions: arguments.repetitions,
        pollers: arguments.pollers,
    };
    if !arguments.yes {
        let device = options.device.display();
        match ask(&format!("All that is on {device} will be lost. Go on?"))? {
            Some(true) => {}
            Some(false) => return Ok(Outcome::Partly),
            None => {
                let what = format!("overwrite {device} without being told to: --yes");
                return Err(Error::with(Errno::CANCELED, what));
            }
        }
    }
    let progress = Progress::steps();
    let (comparison, ended) = adit_bench::compare(&options, &mut |at| {
        let what = match at.left {
            Some(left) => format!("{} min left: {}", left.as_secs().div_ceil(60), at.what),
            None => at.what.to_owned(),
        };
        progress.step(&what, at.done);
    })?;
    drop(progress);
    let files = adit_bench::save(&comparison, &arguments.out)?;
    let mut out = output::stdout();
    write!(out, "{comparison}")?;
    if let Some(page) = files
        .iter()
        .find(|file| file.extension().is_some_and(|kind| kind == "html"))
    {
        let beside = match files.len() - 1 {
            1 => "1 more file".to_owned(),
            more => format!("{more} more files"),
        };
        writeln!(out, "\n{} and {beside} beside it", page.display())?;
    }
    ended?;
    Ok(Outcome::Done)
}

/// Reads the assignment, a line of stdin, and prints what was measured, a line.
pub(crate) fn measure() -> adit::Result<()> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let assignment: adit_bench::Assignment = serde_json::from_str(&line).map_err(|error| {
        Error::with(
            Errno::INVAL,
            format!("understand the assignment on stdin: {error}"),
        )
    })?;
    let measured = adit_bench::measure_alone(&assignment)?;
    let text = serde_json::to_string(&measured).map_err(std::io::Error::other)?;
    writeln!(output::stdout(), "{text}")?;
    Ok(())
}

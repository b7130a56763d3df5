//! The comparison as one page of HTML with everything in it: tables, pictures, machine, commands.
//! It loads nothing. Colors are the reader's choice, light or dark; pictures are drawn on white, and
//! inverted on dark.

use std::fmt::Write;

use crate::compare::comparison::Comparison;
use crate::pictures::Picture;
use crate::report::markdown::markdown;

const STYLE: &str = "
:root { color-scheme: light dark; --text: #1a1a1a; --page: #fff; --line: #ddd; --soft: #f4f6f9; --link: #0b57d0; }
@media (prefers-color-scheme: dark) {
  :root { --text: #ddd; --page: #161616; --line: #3a3a3a; --soft: #222; --link: #8ab4f8; }
  svg { filter: invert(.91) hue-rotate(180deg); }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: var(--text); background: var(--page); }
a { color: var(--link); }
h1 { font-size: 1.7em; } h2 { margin-top: 2.5em; border-bottom: 1px solid var(--line); padding-bottom: .2em; }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums; font-size: 13px; display: block; overflow-x: auto; }
th, td { padding: .25em .7em; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
th { border-bottom-width: 2px; } tr:hover td { background: var(--soft); }
pre, code { background: var(--soft); } pre { padding: 1em; overflow-x: auto; } code { padding: 0 .2em; overflow-wrap: anywhere; }
figure { margin: 1.5em 0; overflow-x: auto; } svg { width: 100%; min-width: 40em; max-width: 900px; height: auto; }
nav { display: flex; flex-wrap: wrap; gap: .2em 1em; }
";

/// The page.
pub(crate) fn html(comparison: &Comparison, pictures: &[Picture]) -> String {
    let mut page =
        String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    let names: Vec<&str> = comparison
        .systems
        .iter()
        .map(|system| system.name.as_str())
        .collect();
    let title = format!(
        "Adit beside {}",
        names
            .iter()
            .filter(|name| **name != "adit")
            .copied()
            .collect::<Vec<_>>()
            .join(", ")
    );
    let _ = write!(
        page,
        "<title>{0}</title>\n<style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n",
        escaped(&title)
    );
    page.push_str("<nav>");
    for group in &comparison.groups {
        let _ = write!(
            page,
            "<a href=\"#{}\">{}</a>",
            group.id,
            escaped(&group.title)
        );
    }
    page.push_str("<a href=\"#lost\">Where Adit loses</a></nav>\n");
    let text = markdown(comparison);
    let mut group = comparison.groups.iter();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(heading) = line.strip_prefix("## ") {
            // The pictures of a group come before its tables.
            let id = match heading {
                "Where Adit loses" => "lost",
                "Commands" => "commands",
                _ => group.next().map_or("", |group| &group.id),
            };
            let _ = writeln!(page, "<h2 id=\"{id}\">{}</h2>", escaped(heading));
            for picture in pictures.iter().filter(|picture| picture.group == id) {
                let _ = writeln!(
                    page,
                    "<figure role=\"img\" aria-label=\"{}\">{}</figure>",
                    escaped(&picture.title),
                    picture.svg
                );
            }
        } else if line.starts_with('|') {
            let mut rows = vec![line];
            while let Some(next) = lines.next_if(|next| next.starts_with('|')) {
                rows.push(next);
            }
            write_table(&mut page, &rows);
        } else if line == "```sh" {
            page.push_str("<pre>");
            for line in lines.by_ref().take_while(|line| *line != "```") {
                let _ = writeln!(page, "{}", escaped(line));
            }
            page.push_str("</pre>\n");
        } else if let Some(item) = line.strip_prefix("- ") {
            let _ = writeln!(page, "<li>{}</li>", inline(item));
        } else if !line.is_empty() {
            let _ = writeln!(page, "<p>{}</p>", inline(line));
        }
    }
    page.push_str("</body></html>\n");
    page
}

/// Lines `| a | b |`; the second is the rule below the header.
fn write_table(page: &mut String, rows: &[&str]) {
    page.push_str("<table>\n");
    for (index, row) in rows.iter().enumerate().filter(|&(index, _)| index != 1) {
        let tag = if index == 0 { "th" } else { "td" };
        page.push_str("<tr>");
        let inner = row.trim().trim_start_matches('|');
        let inner = inner.strip_suffix('|').unwrap_or(inner);
        for cell in inner.split('|') {
            let _ = write!(page, "<{tag}>{}</{tag}>", inline(cell.trim()));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

/// Text with `code` in it.
fn inline(text: &str) -> String {
    let mut html = String::new();
    let mut rest = text;
    while let Some((before, code, behind)) = first_code(rest) {
        let _ = write!(html, "{}<code>{}</code>", escaped(before), escaped(code));
        rest = behind;
    }
    html + &escaped(rest)
}

/// The text before the first piece of code, the piece, and the text behind it.
fn first_code(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once('`')?;
    let (code, behind) = rest.split_once('`')?;
    Some((before, code, behind))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{inline, write_table};

    #[test]
    fn code_of_a_text_is_shown_as_code() {
        assert_eq!(
            inline("a `b < c` d `e`"),
            "a <code>b &lt; c</code> d <code>e</code>"
        );
        assert_eq!(inline("a ` b"), "a ` b");
    }

    #[test]
    fn a_table_has_a_header_and_escapes_what_it_shows() {
        let mut page = String::new();
        write_table(&mut page, &["| | a |", "|---|---|", "| x < y | 1 |"]);
        assert!(page.contains("<tr><th></th><th>a</th></tr>"), "{page}");
        assert!(page.contains("<td>x &lt; y</td><td>1</td>"), "{page}");
    }
}

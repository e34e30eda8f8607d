//! `gpuslice completions SHELL` and `gpuslice man`: made from the same table as the parser.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Arguments;
use crate::{Failure, say};

/// The last section of the manual page.
const EXIT_STATUS: &str = r#".SH "EXIT STATUS"
run, sim and trace end with the status of their command: 128 and the number of the signal if a signal ended it, 126 if it
cannot be executed, 127 if it is not found. demo ends with 1 if a wall fell, doctor with 1 if run does not work here, setup with
1 if what --check tried did not hold.
125 is a failure of gpuslice itself, which standard error tells in one line.
"#;

/// Prints the completions of a shell.
///
/// # Errors
/// Standard output cannot be written.
pub fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut shown(), "gpuslice", &mut out);
    say::print(&out)?;
    Ok(0)
}

/// The command line without what is hidden, which the completions of some shells would offer.
fn shown() -> clap::Command {
    let all = Arguments::command();
    let mut shown = clap::Command::new("gpuslice").version(env!("CARGO_PKG_VERSION"));
    if let Some(about) = all.get_about() {
        shown = shown.about(about.clone());
    }
    for sub in all.get_subcommands().filter(|c| !c.is_hide_set()) {
        // A command's name lives as long as the program, which ends after this.
        let name: &'static str = sub.get_name().to_owned().leak();
        let mut visible = clap::Command::new(name);
        if let Some(about) = sub.get_about() {
            visible = visible.about(about.clone());
        }
        let arguments = sub.get_arguments().filter(|a| !a.is_hide_set());
        shown = shown.subcommand(visible.args(arguments));
    }
    shown
}

/// Prints the manual page: the program, then each command in a section of its own.
///
/// # Errors
/// Standard output cannot be written.
pub fn man() -> Result<u8, Failure> {
    let mut command = Arguments::command();
    command.build();
    let program = clap_mangen::Man::new(command.clone());
    let mut out = Vec::new();
    program.render_title(&mut out)?;
    program.render_name_section(&mut out)?;
    program.render_synopsis_section(&mut out)?;
    program.render_description_section(&mut out)?;
    for sub in command
        .get_subcommands()
        .filter(|c| !c.is_hide_set() && c.get_name() != "help")
    {
        let mut section = Vec::new();
        let page =
            clap_mangen::Man::new(sub.clone().bin_name(format!("gpuslice {}", sub.get_name())));
        page.render_synopsis_section(&mut section)?;
        page.render_options_section(&mut section)?;
        // Sections of a page of its own are subsections here.
        let section = String::from_utf8(section)?
            .replace(".SH ", ".SS ")
            .replace(" <\\fICMD\\fR> \n", " \\-\\- <\\fICMD\\fR>...\n");
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        writeln!(
            out,
            ".SH \"GPUSLICE {}\"\n{about}\n{section}",
            sub.get_name().to_uppercase()
        )?;
    }
    out.extend_from_slice(EXIT_STATUS.as_bytes());
    say::print(&out)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
        shown().debug_assert();
    }
}

//! `gpuslice completions SHELL` and `gpuslice man`: made from the same table as the parser.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::Failure;
use crate::args::Arguments;

/// Prints the completions of a shell.
pub fn completions(shell: Shell) -> u8 {
    let mut command = Arguments::command();
    clap_complete::generate(shell, &mut command, "gpuslice", &mut io::stdout());
    0
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
        let section = String::from_utf8(section)?.replace(".SH ", ".SS ");
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        writeln!(
            out,
            ".SH \"GPUSLICE {}\"\n{about}\n{section}",
            sub.get_name().to_uppercase()
        )?;
    }
    io::stdout().write_all(&out)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }
}

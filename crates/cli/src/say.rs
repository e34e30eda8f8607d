//! What we write for people and programs. A reader that is gone is no reason to panic: `gpuslice ps | head -1`.

use std::fmt::Arguments;
use std::io::{self, Write};

use crate::Failure;

/// Writes the result to standard output. A reader that has closed it has read enough, and that is no failure.
///
/// # Errors
/// One line: it cannot be written (a full disk).
pub fn print(text: &[u8]) -> Result<(), Failure> {
    written(&mut io::stdout().lock(), text)
}

fn written(out: &mut impl Write, text: &[u8]) -> Result<(), Failure> {
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write the output: {e}").into())
        }
        _ => Ok(()),
    }
}

/// A line on standard error. Where it cannot be written nothing else can be done.
pub fn note(line: Arguments<'_>) {
    let _written = writeln!(io::stderr().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken(io::ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_is_gone_is_no_failure_and_a_full_disk_is() {
        assert!(written(&mut Broken(io::ErrorKind::BrokenPipe), b"x").is_ok());
        let e = written(&mut Broken(io::ErrorKind::StorageFull), b"x").unwrap_err();
        assert!(
            e.to_string().starts_with("cannot write the output: "),
            "{e}"
        );
    }
}

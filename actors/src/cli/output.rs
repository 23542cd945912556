//! What commands say on standard output and standard error.
//!
//! Somebody who has read enough (`greengnn doctor | head -1`) closes the pipe. That is no failure of the command: it does its
//! work to the end, says the rest to nobody, and ends with the status of its work.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Prints a line, or several, on standard output.
///
/// # Errors
/// Standard output cannot be written for another reason than that nobody reads it any more.
pub fn print(text: impl Display) -> io::Result<()> {
    write_line(io::stdout().lock(), text)
}

/// Says a line on standard error. Whoever does not read it misses it: there is nowhere else to say so.
pub fn note(text: impl Display) {
    let _ = write_line(io::stderr().lock(), text);
}

fn write_line(mut out: impl Write, text: impl Display) -> io::Result<()> {
    // In one write, so that lines of several processes do not mix.
    match out.write_all(format!("{text}\n").as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_who_has_gone_is_no_error() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        write_line(&writer, "unread").unwrap();
        let mut full = &mut [0u8; 3][..];
        assert_eq!(write_line(&mut full, "long").unwrap_err().kind(), ErrorKind::WriteZero);
    }
}

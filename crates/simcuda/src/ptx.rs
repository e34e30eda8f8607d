//! As much of PTX as loading a module needs: the names of its kernels.

/// The names after `.entry`, in order, comments left out.
pub fn entries(text: &str) -> Vec<String> {
    let text = without_comments(text);
    let mut words = text
        .split(|c: char| c.is_whitespace() || "(){};,".contains(c))
        .filter(|word| !word.is_empty());
    let mut names = Vec::new();
    while let Some(word) = words.next() {
        if word == ".entry"
            && let Some(name) = words.next()
        {
            names.push(name.to_owned());
        }
    }
    names
}

/// Whether the text is PTX at all: its first directive is `.version`.
pub fn is_ptx(text: &str) -> bool {
    without_comments(text).trim_start().starts_with(".version")
}

fn without_comments(text: &str) -> String {
    let mut left = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('/') {
        let (before, from) = rest.split_at(start);
        left.push_str(before);
        let end = match from.as_bytes().get(1) {
            Some(b'/') => from.find('\n'),
            // Past the opening, whose own star ends nothing.
            Some(b'*') => from[2..].find("*/").map(|at| at + 4),
            _ => {
                left.push('/');
                Some(1)
            }
        };
        rest = end.map_or("", |at| &from[at..]);
        left.push(' ');
    }
    left.push_str(rest);
    left
}

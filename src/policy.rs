//! Which mailbox is meant: the one resolution for every door.

use std::fmt;
use std::str::FromStr;

use crate::error::Result;
use crate::names::{MailboxName, NameError};
use crate::spool::Spool;

/// How an address becomes the name of a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Naming {
    /// `Ann+shop@example.com` is mailbox `ann`.
    #[default]
    Local,
    /// `Ann+shop@example.com` is mailbox `ann@example.com`.
    Full,
    /// `Ann+shop@example.com` is mailbox `example.com`.
    Domain,
}

impl Naming {
    /// Finds the mailbox that a name or an address means: a directory of exactly that name if there
    /// is one, else Inbucket's reading of it.
    pub fn resolve(self, spool: &Spool, given: &str) -> Result<MailboxName> {
        let exact = MailboxName::parse(given)?;
        let reading = self.read(given);
        // Mostly they are the same, and then the disk need not be asked.
        if reading.as_ref() != Ok(&exact) && spool.has_mailbox(&exact)? {
            return Ok(exact);
        }
        Ok(reading?)
    }

    /// Inbucket's reading: quotes off, `+tag` cut, ASCII in lower case, and the part that the naming
    /// wants.
    fn read(self, given: &str) -> Result<MailboxName, NameError> {
        let (local, domain) = match given.rsplit_once('@') {
            Some((local, domain)) => (local, Some(domain)),
            None => (given, None),
        };
        let unquoted = local
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'));
        let odd =
            |text: &str| text.contains(|c: char| c.is_whitespace() || "<>()@,;:\"".contains(c));
        if domain.is_some_and(odd) || (domain.is_some() && unquoted.is_none() && odd(local)) {
            return Err(NameError::not_an_address(given));
        }
        let local = unquoted.unwrap_or(local);
        let local = local.split('+').next().unwrap_or(local);
        let mut name = match (self, domain) {
            (Naming::Full, Some(domain)) if !local.is_empty() => format!("{local}@{domain}"),
            (Naming::Domain, Some(domain)) => domain.to_owned(),
            _ => local.to_owned(),
        };
        name.make_ascii_lowercase();
        MailboxName::parse(&name).map_err(|err| err.about(given))
    }
}

impl FromStr for Naming {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "local" => Ok(Naming::Local),
            "full" => Ok(Naming::Full),
            "domain" => Ok(Naming::Domain),
            _ => Err("it must be local, full or domain".into()),
        }
    }
}

impl fmt::Display for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Naming::Local => "local",
            Naming::Full => "full",
            Naming::Domain => "domain",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_inbucket_reads_them() {
        let cases = [
            ("three", "three", "three", "three"),
            ("THREE", "three", "three", "three"),
            ("three+tag", "three", "three", "three"),
            (
                "three@Example.com",
                "three",
                "three@example.com",
                "example.com",
            ),
            (
                "Three+x@example.com",
                "three",
                "three@example.com",
                "example.com",
            ),
            ("\"three\"", "three", "three", "three"),
            ("\"a b\"@x.example", "a b", "a b@x.example", "x.example"),
            ("ÄB", "Äb", "Äb", "Äb"),
        ];
        for (given, local, full, domain) in cases {
            let read = |naming: Naming| naming.read(given).unwrap().to_string();
            assert_eq!(read(Naming::Local), local, "{given}");
            assert_eq!(read(Naming::Full), full, "{given}");
            assert_eq!(read(Naming::Domain), domain, "{given}");
        }
    }

    #[test]
    fn what_leaves_no_name_is_refused_by_its_own_words() {
        for given in [
            "+tag",
            "@example.com",
            "\"\"",
            "\"../x\"@y.example",
            "Bob Smith <bob@example.com>",
            "a@b@c",
            "a b@example.com",
            "a@example.com, b@example.com",
        ] {
            let err = Naming::Local.read(given).unwrap_err();
            assert!(err.to_string().starts_with(&format!("{given:?}")), "{err}");
        }
        assert!(Naming::Full.read("@example.com").is_err());
    }

    #[test]
    fn a_directory_of_exactly_that_name_wins() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::open(dir.path(), crate::Options::default()).unwrap();
        let resolve = |given: &str| Naming::Local.resolve(&spool, given).unwrap().to_string();
        assert_eq!(resolve("Bob@example.com"), "bob");
        std::fs::create_dir(dir.path().join("Bob@example.com")).unwrap();
        assert_eq!(resolve("Bob@example.com"), "Bob@example.com");
        assert_eq!(resolve("bob@example.com"), "bob");
        assert!(Naming::Local.resolve(&spool, "a/b@example.com").is_err());
        // Even one that could be no reading of anything.
        assert!(Naming::Local.resolve(&spool, "+tag").is_err());
        std::fs::create_dir(dir.path().join("+tag")).unwrap();
        assert_eq!(resolve("+tag"), "+tag");
    }
}

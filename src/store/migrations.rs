//! Which migrations a database lacks: the part that both stores share.
//!
//! Migrations are applied in one transaction under a lock, all or none, and never edited afterwards. Not sqlx's
//! migrator: its lock lasts a session, which a transaction pooler breaks, and on SQLite it takes none.

use sha2::{Digest, Sha256};

use super::StoreError;

/// One file of `migrations/`.
#[derive(Debug)]
pub(super) struct Migration {
    pub(super) version: i64,
    pub(super) name: &'static str,
    pub(super) sql: &'static str,
    /// The first version of the program that serves on a database that has it.
    pub(super) serves_from: &'static str,
}

/// A migration that a database has.
#[derive(Debug, Clone)]
pub(super) struct Applied {
    pub(super) version: i64,
    pub(super) checksum: Vec<u8>,
    /// What the program that applied it wrote down; programs before 0.1.1 wrote nothing.
    pub(super) serves_from: Option<String>,
}

impl Migration {
    pub(super) fn checksum(&self) -> Vec<u8> {
        Sha256::digest(self.sql).to_vec()
    }
}

/// A migration that this program knows, and whether the database has it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct MigrationStatus {
    /// Its number: the time it was written.
    pub version: i64,
    /// What it does.
    pub name: &'static str,
    /// Whether the database has it.
    pub applied: bool,
}

/// The migrations that are missing, oldest first.
///
/// A migration of a newer program is not a hindrance when this one still serves on it: so a rolling deployment goes on, and
/// so does the way back.
///
/// # Errors
/// [`StoreError::TooNew`] when the database has one that this program neither knows nor serves on,
/// [`StoreError::Edited`] when one of them differs.
pub(super) fn pending(
    known: &'static [Migration],
    applied: &[Applied],
) -> Result<Vec<&'static Migration>, StoreError> {
    for row in applied {
        match known.iter().find(|migration| migration.version == row.version) {
            None if serves(row, PROGRAM) => {
                tracing::debug!(version = row.version, "the database has a migration of a newer program");
            }
            None => {
                return Err(StoreError::TooNew {
                    found: row.version,
                    known: known.iter().map(|migration| migration.version).max().unwrap_or(0),
                    needs: row.serves_from.clone().unwrap_or_else(|| "a newer one".to_owned()),
                });
            }
            Some(migration) if migration.checksum() != row.checksum => {
                return Err(StoreError::Edited(row.version));
            }
            Some(_) => {}
        }
    }
    let has = |migration: &&Migration| applied.iter().any(|row| row.version == migration.version);
    Ok(known.iter().filter(|migration| !has(migration)).collect())
}

/// This program's version.
const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// Whether a version of the program serves on a database that has this migration.
fn serves(row: &Applied, program: &str) -> bool {
    let numbers = |text: &str| -> Option<Vec<u64>> {
        let release = text.split(['-', '+']).next()?;
        release.split('.').map(|part| part.parse().ok()).collect()
    };
    let from = row.serves_from.as_deref().and_then(numbers);
    from.is_some_and(|from| numbers(program).is_some_and(|program| program >= from))
}

/// All that is known, with what is `pending`.
pub(super) fn status(known: &'static [Migration], pending: &[&Migration]) -> Vec<MigrationStatus> {
    known
        .iter()
        .map(|migration| MigrationStatus {
            version: migration.version,
            name: migration.name,
            applied: !pending.iter().any(|missing| missing.version == migration.version),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{postgres, sqlite};

    fn applied(known: &[Migration]) -> Vec<Applied> {
        let row = |migration: &Migration| Applied {
            version: migration.version,
            checksum: migration.checksum(),
            serves_from: Some(migration.serves_from.to_owned()),
        };
        known.iter().map(row).collect()
    }

    #[test]
    fn every_file_is_in_the_program_and_in_order() {
        for (dir, known) in [("postgres", postgres::MIGRATIONS), ("sqlite", sqlite::MIGRATIONS)] {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(dir);
            let mut files: Vec<String> = std::fs::read_dir(path)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            files.sort();
            let named: Vec<String> =
                known.iter().map(|one| format!("{}_{}.sql", one.version, one.name)).collect();
            assert_eq!(files, named);
        }
    }

    #[test]
    fn a_newer_database_and_an_edited_migration_are_refused() {
        let known = postgres::MIGRATIONS;
        assert_eq!(pending(known, &[]).unwrap().len(), known.len());
        let mut rows = applied(known);
        assert!(pending(known, &rows).unwrap().is_empty());
        let newer = |serves_from: Option<&str>| Applied {
            version: 99_991_231_000_000,
            checksum: vec![1],
            serves_from: serves_from.map(str::to_owned),
        };
        for serves_from in [None, Some("99.0.0"), Some("soon")] {
            rows.push(newer(serves_from));
            let error = pending(known, &rows).unwrap_err();
            assert!(matches!(error, StoreError::TooNew { found: 99_991_231_000_000, .. }));
            assert!(error.to_string().contains(serves_from.unwrap_or("a newer one")), "{error}");
            assert!(error.to_string().contains(PROGRAM), "{error}");
            rows.pop();
        }
        rows.push(newer(Some(PROGRAM)));
        assert!(pending(known, &rows).unwrap().is_empty(), "a newer migration on which this program serves");
        rows.pop();
        rows[0].checksum[0] ^= 1;
        assert!(
            matches!(pending(known, &rows), Err(StoreError::Edited(version)) if version == rows[0].version)
        );
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let row =
            |from: &str| Applied { version: 1, checksum: Vec::new(), serves_from: Some(from.to_owned()) };
        assert!(serves(&row("0.9.0"), "0.10.0") && serves(&row("1.2.3"), "1.2.3-rc.1"));
        assert!(!serves(&row("0.10.0"), "0.9.9") && !serves(&row(""), "0.1.0"));
    }

    #[test]
    fn each_file_says_from_which_program_on_its_schema_serves() {
        for known in [postgres::MIGRATIONS, sqlite::MIGRATIONS] {
            // Those from before the rule are known to serve.
            let ruled = |version: i64| version == 20_261_129_000_100 || version > 20_261_129_000_400;
            for migration in known.iter().filter(|migration| ruled(migration.version)) {
                let said = format!("Serves programs from {} on", migration.serves_from);
                assert!(migration.sql.contains(&said), "{}: {said}", migration.name);
            }
        }
    }
}

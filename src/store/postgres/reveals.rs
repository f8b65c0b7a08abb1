//! Who opened which kind of sealed token.

use sqlx::Row;

use super::PgStore;
use super::rows::Cells;
use crate::domain::TenantId;
use crate::store::{NewReveal, RevealRow, StoreError};

impl PgStore {
    pub(super) async fn insert_reveal(&self, reveal: &NewReveal) -> Result<(), StoreError> {
        self.call(|| async {
            sqlx::query("select pathbox.record_reveal_v1($1, $2, $3, $4, $5, $6, $7)")
                .bind(&reveal.id)
                .bind(reveal.key.tenant.as_str())
                .bind(reveal.key.conversation.as_str())
                .bind(reveal.key.path.as_str())
                .bind(&reveal.kind)
                .bind(&reveal.principal)
                .bind(reveal.opened)
                .execute(&self.pool())
                .await
                .map(|_| ())
        })
        .await
    }

    pub(super) async fn select_reveals(
        &self,
        tenant: Option<&TenantId>,
        limit: u32,
    ) -> Result<Vec<RevealRow>, StoreError> {
        let rows = self
            .call(|| async {
                sqlx::query("select * from pathbox.reveals_v1($1, $2)")
                    .bind(tenant.map(TenantId::as_str))
                    .bind(i64::from(limit))
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        let read = |row: &sqlx::postgres::PgRow| {
            let id: &str = row.try_get("id").unwrap_or("?");
            let cells = Cells::new(row, "reveals", id);
            Ok(RevealRow {
                reveal: NewReveal {
                    id: cells.get("id")?,
                    key: cells.key()?,
                    kind: cells.get("kind")?,
                    principal: cells.get("principal")?,
                    opened: cells.get("opened")?,
                },
                at: cells.get("at")?,
            })
        };
        rows.iter().map(read).collect()
    }
}

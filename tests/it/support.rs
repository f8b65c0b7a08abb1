//! What the tests share.

pub(crate) mod database;
pub(crate) mod fault_server;
pub(crate) mod http;
pub(crate) mod runs;
pub(crate) mod server;
pub(crate) mod wire;

/// Each test twice, once a store: functions that take a [`database::World`].
macro_rules! on_every_store {
    ($($name:ident,)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name($crate::support::database::World::sqlite()).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs PostgreSQL: scripts/test installs it"]
            async fn $name() {
                super::$name($crate::support::database::World::postgres().await).await;
            })+
        }
    };
}

pub(crate) use on_every_store;

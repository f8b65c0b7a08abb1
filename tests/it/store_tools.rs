//! What is remembered of the tools of other servers, on SQLite and on Postgres.

use std::time::Duration;

use pathbox::domain::{ConversationId, Owner, TenantId};
use pathbox::store::ToolPermit;

use crate::support::database::World;
use crate::support::on_every_store;
use crate::support::runs::key;

on_every_store! {
    the_first_list_of_a_servers_tools_stays_until_it_is_replaced,
    of_two_replicas_that_list_at_once_one_list_wins,
    a_permit_is_for_one_person_in_one_conversation_and_one_definition,
    a_refresh_token_has_a_table_of_its_own_to_which_an_older_program_writes_as_well,
}

async fn the_first_list_of_a_servers_tools_stays_until_it_is_replaced(world: World) {
    let (one, other) = (world.store().await, world.store().await);
    assert_eq!(one.tool_pins("", "kit", None).await.unwrap(), None);
    assert_eq!(one.pin_tools("", "kit", "{\"a\":\"1\"}", false).await.unwrap(), "{\"a\":\"1\"}");
    assert_eq!(other.pin_tools("", "kit", "{\"a\":\"2\"}", false).await.unwrap(), "{\"a\":\"1\"}");
    let first = other.tool_pins("", "kit", None).await.unwrap().unwrap();
    assert_eq!(first.pins.as_deref(), Some("{\"a\":\"1\"}"));
    let again = other.tool_pins("", "kit", Some(&first.digest)).await.unwrap().unwrap();
    assert_eq!((again.digest.as_str(), again.pins), (first.digest.as_str(), None), "it is known already");
    assert_eq!(one.tool_pins("acme", "kit", None).await.unwrap(), None, "a tenant's own server is another");
    // A name may hold anything.
    let odd = serde_json::json!({"a\0\u{e9}'": "2"}).to_string();
    assert_eq!(one.pin_tools("", "kit", &odd, true).await.unwrap(), odd);
    let now = other.tool_pins("", "kit", Some(&first.digest)).await.unwrap().unwrap();
    assert_eq!(now.pins.as_deref(), Some(odd.as_str()));
    assert_ne!(now.digest, first.digest);
}

async fn a_refresh_token_has_a_table_of_its_own_to_which_an_older_program_writes_as_well(world: World) {
    let (one, other) = (world.store().await, world.store().await);
    assert_eq!(one.refresh_token("a").await.unwrap(), None);
    for sealed in ["first", "second"] {
        one.keep_refresh_token("a", sealed).await.unwrap();
        assert_eq!(other.refresh_token("a").await.unwrap().as_deref(), Some(sealed));
    }
    assert_eq!(other.refresh_token("b").await.unwrap(), None);
    assert_eq!(one.tool_pins("a", "refresh_token", None).await.unwrap(), None, "no pins");
    // A program of the release before kept them as pins.
    for sealed in ["third", "fourth"] {
        assert_eq!(one.pin_tools("oauth/a", "refresh_token", sealed, true).await.unwrap(), sealed);
        assert_eq!(other.refresh_token("a").await.unwrap().as_deref(), Some(sealed));
        let pins = other.tool_pins("oauth/a", "refresh_token", None).await.unwrap().unwrap();
        assert_eq!(pins.pins.as_deref(), Some(sealed));
    }
}

async fn of_two_replicas_that_list_at_once_one_list_wins(world: World) {
    let (one, other) = (world.store().await, world.store().await);
    for n in 0..20 {
        let server = format!("kit{n}");
        let (a, b) = tokio::join!(
            one.pin_tools("acme", &server, "{\"a\":\"1\"}", false),
            other.pin_tools("acme", &server, "{\"a\":\"2\"}", false),
        );
        assert_eq!(a.unwrap(), b.unwrap());
    }
}

async fn a_permit_is_for_one_person_in_one_conversation_and_one_definition(world: World) {
    let (one, other) = (world.store().await, world.store().await);
    let given = ToolPermit {
        conversation: key("acme", "c1", "main").of_conversation(),
        principal: "key:ada".to_owned(),
        tool: "kit.delete\0everything".to_owned(),
        definition: "a".repeat(64),
    };
    assert!(!one.tool_permitted(&given).await.unwrap());
    one.permit_tool(&given).await.unwrap();
    one.permit_tool(&given).await.unwrap();
    assert!(other.tool_permitted(&given).await.unwrap());
    let mut others = vec![given.clone(); 6];
    others[0].conversation.tenant = TenantId::parse("umbrella").unwrap();
    others[1].conversation.owner = Owner::principal("key:eve");
    others[2].conversation.conversation = ConversationId::parse("c2").unwrap();
    others[3].principal = "key:eve".to_owned();
    others[4].tool = "kit.echo".to_owned();
    others[5].definition = "b".repeat(64);
    for permit in &others {
        assert!(!other.tool_permitted(permit).await.unwrap(), "{permit:?}");
    }
    // The tool was changed, and is allowed again: what it was before is not.
    other.permit_tool(&others[5]).await.unwrap();
    assert!(one.tool_permitted(&others[5]).await.unwrap() && !one.tool_permitted(&given).await.unwrap());
    world.advance(Duration::from_secs(30 * 24 * 3600 + 60)).await;
    assert!(!one.tool_permitted(&others[5]).await.unwrap(), "30 days");
}

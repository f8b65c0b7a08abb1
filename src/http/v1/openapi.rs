//! The OpenAPI 3.1 document of `/v1`.

use serde_json::{Map, Value, json};

use super::{MAX_MESSAGE, files, workflows};
use crate::domain::MAX_PRINCIPAL;

/// The document, with every route of `/v1`.
pub fn openapi() -> Value {
    let mut paths = Map::new();
    for part in [conversations(), path(), steps(), shares(), reveal(), cleanup(), usage()] {
        paths.extend(part.as_object().cloned().unwrap_or_default());
    }
    paths.insert(
        "/v1/conversations/{conversation}/paths/{path}/files".to_owned(),
        files::openapi(&json!(of_path()), refusals),
    );
    let mut paths = Value::Object(paths);
    workflows::document(&mut paths, refusals, &tenant());
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Pathbox", "version": env!("CARGO_PKG_VERSION"),
            "description": "The paths of conversations, their files, workflows, sealed tokens, and clean-up." },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer", "description": "An API key or an OAuth access token." },
                "cron": { "type": "http", "scheme": "bearer", "description": "CRON_SECRET." },
            },
            "schemas": schemas(),
        },
    })
}

fn id() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9_.:@-]+$" })
}

fn message() -> Value {
    json!({ "type": ["string", "null"], "minLength": 1, "maxLength": MAX_MESSAGE })
}

fn parameter(name: &str, place: &str, schema: &Value) -> Value {
    json!({ "name": name, "in": place, "required": place == "path", "schema": schema })
}

fn tenant() -> Value {
    parameter("X-Tenant-Id", "header", &id())
}

fn of_conversation() -> Vec<Value> {
    vec![parameter("conversation", "path", &id()), tenant()]
}

fn of_path() -> Vec<Value> {
    vec![parameter("conversation", "path", &id()), parameter("path", "path", &id()), tenant()]
}

/// Of a change of a path, which may name the version that it was read in.
fn of_change() -> Vec<Value> {
    let tag = json!({ "type": "string", "pattern": "^([*]|(W/)?\"[0-9]{1,18}\"|[0-9]{1,18})$" });
    let mut parameters = of_path();
    parameters.push(parameter("If-Match", "header", &tag));
    parameters
}

fn operation(id: &str, summary: &str, parameters: &[Value], responses: &Value) -> Value {
    json!({ "operationId": id, "summary": summary, "parameters": parameters, "responses": responses,
        "security": [{ "bearer": [] }] })
}

/// An operation with a body of these properties, of which `required` must be there.
fn asked(mut operation: Value, required: &[&str], properties: &Value) -> Value {
    let mut schema = json!({ "type": "object", "additionalProperties": false, "properties": properties });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    operation["requestBody"] =
        json!({ "required": !required.is_empty(), "content": { "application/json": { "schema": schema } } });
    operation
}

fn error(what: &str) -> Value {
    json!({ "description": what, "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Problem" } } } })
}

/// The responses, with the refusals that every route has and these.
fn refusals(mut responses: Value, more: &[(&str, &str)]) -> Value {
    let common = [
        ("400", "An identifier, header or body does not fit."),
        ("401", "No credential, or an invalid one."),
        ("403", "The credential may not do this, or not for this tenant."),
        ("429", "Too many requests of this caller; see Retry-After."),
        ("503", "The store does not answer; try again."),
    ];
    for (status, what) in common.iter().chain(more) {
        responses[*status] = error(what);
    }
    responses
}

/// An answer that is an object with these properties, each of which is there.
fn answer(status: &str, what: &str, properties: &Value) -> Value {
    let required: Vec<&String> = properties.as_object().into_iter().flat_map(Map::keys).collect();
    json!({ status: { "description": what, "content": { "application/json": { "schema": {
        "type": "object", "required": required, "properties": properties } } } } })
}

fn list_of(name: &str, item: &Value) -> Value {
    refusals(answer("200", "What there is.", &json!({ name: { "type": "array", "items": item } })), &[])
}

fn path_answer(status: &str, what: &str) -> Value {
    json!({ status: { "description": what,
        "headers": { "ETag": { "description": "The path's version.", "schema": { "type": "string" } } },
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Path" } } } } })
}

/// What a change of a path answers.
fn changed(status: &str, what: &str) -> Value {
    let conflicts = [
        ("404", "The path is not registered."),
        ("409", "The path is not active, differs, or would become its own ancestor."),
        ("412", "The path has changed since the version in If-Match."),
    ];
    refusals(path_answer(status, what), &conflicts)
}

fn conversations() -> Value {
    let mut list = of_conversation();
    list.push(parameter("deleted", "query", &json!({ "type": "boolean", "default": false })));
    let parent = json!({ "type": ["string", "null"], "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9_.:@-]+$" });
    json!({
        "/v1/conversations/{conversation}/paths": {
            "get": operation("listPaths", "The registered paths, oldest first", &list,
                &list_of("paths", &json!({ "$ref": "#/components/schemas/Path" }))),
            "post": asked(operation("registerPath", "Registers a path", &of_conversation(),
                &changed("201", "The path, new or as it was registered before.")),
                &["path"], &json!({ "path": id(), "parent": parent, "branchedAtMessage": message() })),
        },
        "/v1/conversations/{conversation}/tree": {
            "get": operation("pathTree", "The registered paths as a tree, nested at most 50 levels; deeper ones stand at the top", &of_conversation(),
                &list_of("tree", &json!({ "$ref": "#/components/schemas/Node" }))),
        },
    })
}

fn path() -> Value {
    json!({ "/v1/conversations/{conversation}/paths/{path}": {
        "get": operation("showPath", "One path", &of_path(),
            &refusals(path_answer("200", "The path."), &[("404", "The path is not registered.")])),
        "delete": operation("deletePath", "Deletes a path; its sandbox ends", &of_change(),
            &changed("200", "The path as it is now.")),
    } })
}

/// What becomes of a path.
fn steps() -> Value {
    let now = || changed("200", "The path as it is now.");
    json!({
        "/v1/conversations/{conversation}/paths/{path}/branch": {
            "post": asked(operation("branchPath", "Registers a path that branches from this one; it starts without a sandbox",
                &of_change(), &changed("201", "The new path.")),
                &["path"], &json!({ "path": id(), "branchedAtMessage": message() })),
        },
        "/v1/conversations/{conversation}/paths/{path}/edit": {
            "post": asked(operation("editPath", "A message was edited; the context is kept", &of_change(), &now()),
                &[], &json!({ "message": { "type": ["string", "null"] } })),
        },
        "/v1/conversations/{conversation}/paths/{path}/merge": {
            "post": asked(operation("mergePath", "Merges a path into another; its sandbox ends, the other's is untouched",
                &of_change(), &now()), &["target"], &json!({ "target": id() })),
        },
        "/v1/conversations/{conversation}/paths/{path}/archive": {
            "post": operation("archivePath", "Archives a path; its sandbox ends", &of_change(), &now()),
        },
    })
}

fn shares() -> Value {
    let principals = || list_of("principals", &json!({ "type": "string" }));
    let with = json!({ "type": "string", "minLength": 1, "maxLength": MAX_PRINCIPAL });
    let shared = json!({ "type": "object", "required": ["owner", "conversation", "context"], "properties": {
        "owner": { "type": "string" }, "conversation": id(), "context": { "type": "string" } } });
    json!({
        "/v1/conversations/{conversation}/shares": {
            "get": operation("listShares", "The principals that the caller shares a conversation of its own with",
                &of_conversation(), &principals()),
        },
        "/v1/conversations/{conversation}/shares/{principal}": {
            "parameters": [parameter("principal", "path", &with)],
            "put": operation("share", "Shares a conversation with a principal of the tenant: it may run in it, read it and end it",
                &of_conversation(), &principals()),
            "delete": operation("unshare", "Takes a share back", &of_conversation(), &principals()),
        },
        "/v1/shared": {
            "get": operation("listShared", "The conversations that others share with the caller, each with its handle",
                &[tenant()], &list_of("conversations", &shared)),
        },
    })
}

fn reveal() -> Value {
    let value =
        answer("200", "The value.", &json!({ "kind": { "type": "string" }, "value": { "type": "string" } }));
    json!({ "/v1/reveal": {
        "post": asked(operation("reveal", "The value of a sealed token of the egress guard; each request is recorded",
            &[tenant()], &refusals(value, &[("404", "It is not a token of this context, or was altered.")])),
            &["token", "conversation"], &json!({ "token": { "type": "string" }, "conversation": id(), "path": id() })),
    } })
}

fn cleanup() -> Value {
    let mut responses = answer(
        "200",
        "What was done.",
        &json!({ "cleaned": { "type": "integer" }, "errors": { "type": "integer" } }),
    );
    responses["401"] = error("The token is not CRON_SECRET.");
    responses["404"] = error("CRON_SECRET is not set.");
    responses["503"] = error("The store does not answer; try again.");
    json!({ "/v1/cleanup": {
        "post": { "operationId": "cleanup", "summary": "Ends expired contexts once", "security": [{ "cron": [] }],
            "responses": responses },
    } })
}

fn usage() -> Value {
    let day = |name: &str, what: &str| {
        parameter(name, "query", &json!({ "type": "string", "format": "date", "description": what }))
    };
    let by = json!({ "type": "string", "enum": ["tenant", "conversation", "path", "day"], "default": "conversation" });
    let parameters = [
        tenant(),
        day("from", "UTC; the first of the month of `to` when not given"),
        day("to", "included; today when not given"),
        parameter("by", "query", &by),
    ];
    let answer = json!({ "200": { "description": "Lines, and the quota of the tenant.",
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Usage" } } } } });
    json!({ "/v1/usage": { "get": operation("usage",
        "Usage and cost: the caller's own, or the tenant's for the scope `admin`", &parameters,
        &refusals(answer, &[])) } })
}

fn schemas() -> Value {
    json!({
        "Path": { "type": "object", "required": ["path", "status", "version", "createdAt", "updatedAt"],
            "properties": {
                "path": id(), "parent": { "type": ["string", "null"] }, "branchedAtMessage": { "type": ["string", "null"] },
                "mergedInto": { "type": ["string", "null"] },
                "status": { "type": "string", "enum": ["active", "merged", "archived", "deleted"] },
                "version": { "type": "integer" },
                "createdAt": { "type": "string", "format": "date-time" },
                "updatedAt": { "type": "string", "format": "date-time" } } },
        "Node": { "allOf": [{ "$ref": "#/components/schemas/Path" }, { "type": "object", "properties": {
            "children": { "type": "array", "items": { "$ref": "#/components/schemas/Node" } } } }] },
        "UsageLine": { "type": "object",
            "required": ["tenant", "executions", "runMs", "sandboxMs", "outputBytes", "cost"],
            "properties": {
                "tenant": id(), "owner": { "type": "string" }, "conversation": id(), "path": id(),
                "day": { "type": "string", "format": "date" },
                "executions": { "type": "integer" }, "runMs": { "type": "integer" },
                "sandboxMs": { "type": "integer" }, "outputBytes": { "type": "integer" },
                "cost": { "type": "string", "description": "a decimal, in the currency" } } },
        "Usage": { "type": "object", "required": ["from", "to", "currency", "lines", "quota"], "properties": {
            "from": { "type": "string", "format": "date" }, "to": { "type": "string", "format": "date" },
            "currency": { "type": "string" },
            "lines": { "type": "array", "items": { "$ref": "#/components/schemas/UsageLine" } },
            "quota": { "type": "object", "required": ["period", "sandboxSeconds", "executions", "money"], "properties": {
                "period": { "type": "string", "enum": ["day", "month"] },
                "sandboxSeconds": { "type": ["integer", "null"] }, "executions": { "type": ["integer", "null"] },
                "money": { "type": ["string", "null"] } } } } },
        "Problem": { "type": "object", "required": ["error"], "properties": { "error": {
            "type": "object", "required": ["code", "message", "retryable"], "properties": {
                "code": { "type": "string" }, "message": { "type": "string" }, "retryable": { "type": "boolean" } } } } },
    })
}

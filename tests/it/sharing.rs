//! Two servers on one spool.

use std::time::Duration;

use crate::support::{Server, eventually, mail};

#[test]
fn both_see_the_same_and_keep_each_others_marks() {
    let spool = tempfile::tempdir().unwrap();
    let (one, two) = (Server::on(spool.path()), Server::on(spool.path()));
    for n in 0..10 {
        one.drop_message("box", &format!("m{n}"), mail("x"));
    }
    assert_eq!(one.list("box"), two.list("box"));
    // Each marks every other message, at the same time.
    std::thread::scope(|scope| {
        for (server, first) in [(&one, 0), (&two, 1)] {
            scope.spawn(move || {
                for n in (first..10).step_by(2) {
                    let path = format!("/api/v1/mailbox/box/m{n}");
                    assert_eq!(
                        server.send("PATCH", &path, &[], b"{\"seen\":true}").status,
                        200
                    );
                }
            });
        }
    });
    let all_seen = |server: &Server| {
        let list = server.list("box");
        if list.iter().all(|entry| entry["seen"] == true) {
            Ok(())
        } else {
            Err(list)
        }
    };
    eventually(Duration::from_secs(5), || all_seen(&one));
    eventually(Duration::from_secs(5), || all_seen(&two));
    // One unmarks, the other changes something else and saves.
    assert_eq!(
        one.send("PATCH", "/api/v1/mailbox/box/m0", &[], b"{\"seen\":false}")
            .status,
        200
    );
    two.drop_message("box", "new", mail("new"));
    assert_eq!(two.ids("box").len(), 11);
    assert_eq!(two.request("DELETE", "/api/v1/mailbox/box/new").status, 200);
    assert_eq!(one.ids("box").len(), 10);
    assert!(two.stop().success());
    assert!(one.stop().success());
    let again = Server::on(spool.path());
    let unseen: Vec<_> = again
        .list("box")
        .into_iter()
        .filter(|entry| entry["seen"] == false)
        .collect();
    assert_eq!(unseen.len(), 1);
    assert_eq!(unseen[0]["id"], "m0");
}

#[test]
#[ignore = "takes a minute: scripts/test --all"]
fn two_servers_and_four_deliverers_for_a_minute() {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Mutex;
    use std::time::Instant;

    use crate::support::{Random, run, spoolbox};

    let spool = tempfile::tempdir().unwrap();
    let servers = [Server::on(spool.path()), Server::on(spool.path())];
    let delivered: Mutex<BTreeSet<String>> = Mutex::default();
    let deleted: Mutex<BTreeSet<String>> = Mutex::default();
    let marked: Mutex<BTreeMap<String, bool>> = Mutex::default();
    let end = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while Instant::now() < end {
                    let mut command = spoolbox();
                    command
                        .arg("deliver")
                        .arg("--spool")
                        .arg(spool.path())
                        .arg("box");
                    let output = run(&mut command, mail("shared").as_bytes());
                    assert!(output.status.success(), "{output:?}");
                    let id = String::from_utf8(output.stdout)
                        .unwrap()
                        .trim_end()
                        .to_owned();
                    assert!(
                        delivered.lock().unwrap().insert(id.clone()),
                        "{id} was given twice"
                    );
                }
            });
        }
        for (number, server) in servers.iter().enumerate() {
            let (delivered, deleted, marked) = (&delivered, &deleted, &marked);
            scope.spawn(move || {
                let mut random = Random::new(number as u64 + 1);
                while Instant::now() < end {
                    let ids = server.ids("box");
                    let Some(id) = ids.get(random.below(ids.len().max(1))) else {
                        continue;
                    };
                    let path = format!("/api/v1/mailbox/box/{id}");
                    // Each server has messages of its own to mark, so that there is one last word.
                    let own = id.bytes().last().unwrap() as usize % 2 == number;
                    match random.below(4) {
                        0 if server.request("DELETE", &path).status == 200 => {
                            assert!(delivered.lock().unwrap().contains(id) || !ids.is_empty());
                            deleted.lock().unwrap().insert(id.clone());
                        }
                        1 | 2 if own => {
                            let seen = random.below(2) == 0;
                            let body = format!("{{\"seen\":{seen}}}");
                            if server.send("PATCH", &path, &[], body.as_bytes()).status == 200 {
                                marked.lock().unwrap().insert(id.clone(), seen);
                            }
                        }
                        _ => assert!([200, 404].contains(&server.get(&path).status)),
                    }
                }
            });
        }
    });
    let (delivered, deleted) = (
        delivered.into_inner().unwrap(),
        deleted.into_inner().unwrap(),
    );
    let expected: Vec<String> = delivered.difference(&deleted).cloned().collect();
    println!(
        "{} delivered, {} deleted, {} left",
        delivered.len(),
        deleted.len(),
        expected.len()
    );
    eventually(Duration::from_secs(4), || {
        let (one, two) = (servers[0].list("box"), servers[1].list("box"));
        if one == two {
            Ok(())
        } else {
            Err((one.len(), two.len()))
        }
    });
    for server in &servers {
        assert_eq!(
            server.ids("box"),
            expected,
            "something was lost, or came back"
        );
    }
    for server in servers {
        assert!(server.stop().success());
    }
    let again = Server::on(spool.path());
    let marked = marked.into_inner().unwrap();
    for entry in again.list("box") {
        let id = entry["id"].as_str().unwrap();
        assert_eq!(
            entry["seen"],
            marked.get(id).copied().unwrap_or(false),
            "{id}"
        );
    }
}

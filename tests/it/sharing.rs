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

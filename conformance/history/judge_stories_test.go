package history

// Each pair is an illegal history and the nearest legal one.
var stories = []struct {
	rule           Rule
	name           string
	bounds         Bounds
	illegal, legal string
}{
	{RuleOverlap, "granted before the release is called", Bounds{}, `
		0 a call; 1 a ok dl=100; 2 b call; 9 b ok dl=100; 10 a rel.call held; 11 a rel.ok; 12 b rel.call held;
		13 b rel.ok`, `
		0 a call; 1 a ok dl=100; 2 b call; 9 a rel.call held; 10 b ok dl=100; 11 a rel.ok; 12 b rel.call held;
		13 b rel.ok`},
	{RuleOverlap, "granted before the deadline", Bounds{}, `
		0 a call; 1 a ok dl=50; 2 b call; 49 b ok dl=100`, `
		0 a call; 1 a ok dl=50; 2 b call; 50 b ok dl=100`},
	{RuleOverlap, "granted before a renewed deadline", Bounds{}, `
		0 a call; 1 a ok dl=50; 2 b call; 40 a valid held dl=90; 60 b ok dl=100`, `
		0 a call; 1 a ok dl=50; 2 b call; 40 a valid dl=50 notheld; 60 b ok dl=100`},
	{RuleOverlap, "granted before an extended deadline", Bounds{}, `
		0 a call; 1 a ok dl=50; 40 a renew.ok dl=90; 41 b call; 60 b ok dl=100`, `
		0 a call; 1 a ok dl=50; 40 a renew.ok dl=60; 41 b call; 60 b ok dl=100`},
	{RuleOverlap, "renewals were not recorded, but the lease was held when it was released", Bounds{}, `
		0 a call; 1 a ok dl=50; 2 b call; 60 b ok dl=100; 70 a rel.call held dl=90; 71 a rel.ok`, `
		0 a call; 1 a ok dl=50; 2 b call; 60 b ok dl=100; 70 a rel.call dl=50 notheld; 71 a rel.err notheld`},
	{RuleOverlap, "a lease found to have ended after its deadline may have been removed earlier", Bounds{}, `
		0 a call; 1 a ok dl=30; 2 b call; 29 b ok dl=60; 31 a valid notheld`, `
		0 a call; 1 a ok dl=30; 2 b call; 29 b ok dl=60; 31 a valid removed`},
	{RuleOverlap, "a lease found to have ended may have lost its session", Bounds{}, `
		0 a call; 1 a ok dl=30; 2 b call; 29 b ok dl=60; 31 a valid notheld`, `
		0 a call; 1 a ok dl=30; 2 b call; 29 b ok dl=60; 31 a valid session`},
	{RuleOverlap, "two attempts of one client without a common owner", Bounds{MinClients: 1}, `
		0 a call client=c; 1 a ok dl=50; 2 b call client=c; 3 b ok dl=50`, `
		0 a call client=c owner=o; 1 a ok dl=50; 2 b call client=c owner=o; 3 b ok dl=50`},
	{RuleOverlap, "owners of two clients with the same name", Bounds{}, `
		0 a call owner=o; 1 a ok dl=50; 2 b call owner=o; 3 b ok dl=60`, `
		0 a call owner=o; 1 a ok dl=50; 2 b call owner=o; 3 a rel.call held dl=50; 4 b ok dl=60`},
	{RuleOverlap, "an overlap with an outer hold after its inner hold was released", Bounds{}, `
		0 a call client=c owner=o; 1 a ok dl=50; 2 b call client=c owner=o; 3 b ok dl=60; 4 b rel.call held dl=60;
		5 b rel.ok; 6 x call; 7 x ok dl=60`, `
		0 a call client=c owner=o; 1 a ok dl=50; 2 b call client=c owner=o; 3 b ok dl=60; 4 b rel.call held dl=60;
		5 b rel.ok; 6 x call; 50 x ok dl=60`},
	{RuleOverlap, "the backend confirmed the hold at its release; the result of Unlock alone does not confirm it", Bounds{Detect: 20 * ms}, `
		0 a call; 1 a ok dl=50; 4 x call; 5 x ok dl=60; 6 a rel.call held dl=50; 7 a rel.answer since=1; 7 a rel.ok`, `
		0 a call; 1 a ok dl=50; 4 x call; 5 x ok dl=60; 6 a rel.call held dl=50; 7 a rel.ok`},
	{RuleOverlap, "the backend confirmed the hold after Unlock had given up", Bounds{Detect: 20 * ms}, `
		0 a call; 1 a ok dl=50; 4 x call; 5 x ok dl=60; 6 a rel.call held dl=50; 7 a rel.err unknown; 30 a rel.answer since=1`, `
		0 a call; 1 a ok dl=50; 4 x call; 5 x ok dl=60; 6 a rel.call held dl=50; 7 a rel.err unknown; 30 a rel.answer since=1 unknown`},
	{RuleOverlap, "if an owner holds a lock twice, the last Unlock sends the release", Bounds{Detect: 20 * ms}, `
		0 a call client=c owner=o; 1 a ok dl=50; 2 b call client=c owner=o; 3 b ok dl=50; 4 x call; 5 x ok dl=60;
		6 b rel.call held dl=50; 7 b rel.ok; 8 a rel.call held dl=50; 9 a rel.answer since=1; 9 a rel.ok`, `
		0 a call client=c owner=o; 1 a ok dl=50; 2 b call client=c owner=o; 3 b ok dl=50; 4 x call; 5 x ok dl=60;
		6 b rel.call held dl=50; 7 b rel.ok; 8 a rel.call held dl=50; 9 a rel.answer since=1 notheld; 9 a rel.err notheld`},
	{RuleOverlap, "a hold whose grant is known to precede its release", Bounds{Detect: 20 * ms}, `
		0 a call; 1 a ok dl=50; 4 x call; 6 a rel.call held dl=50; 7 x ok dl=60; 9 a rel.answer since=2; 9 a rel.ok;
		10 x rel.call held dl=60; 11 x rel.answer since=5; 11 x rel.ok`, `
		0 a call; 1 a ok dl=50; 4 x call; 6 a rel.call held dl=50; 7 x ok dl=60; 9 a rel.answer since=7; 9 a rel.ok;
		10 x rel.call held dl=60; 11 x rel.answer since=5; 11 x rel.ok`},
	{RuleOverlap, "a re-entry that outlives the first hold", Bounds{Detect: 20 * ms}, `
		0 a call client=c owner=o; 1 a ok dl=50; 2 b call client=c owner=o; 3 b ok dl=50; 4 x call; 5 x ok dl=60;
		6 a rel.call held dl=50; 7 a rel.ok; 8 b rel.call held dl=50; 9 b rel.answer since=1; 9 b rel.ok`, `
		0 a call client=c owner=o; 1 a ok dl=50; 2 b call client=c owner=o; 3 b ok dl=50; 4 x call; 5 x ok dl=60;
		6 a rel.call held dl=50; 7 a rel.ok; 8 b rel.call held dl=50; 9 b rel.err removed`},
	{RuleOverlap, "a hold that was passed to a waiter of the client existed until that waiter released it", Bounds{Detect: 20 * ms}, `
		0 a call client=c; 1 a ok dl=50; 2 b call client=c; 3 x call; 4 x ok dl=50; 5 x rel.call held dl=50; 5 x rel.answer since=4;
		5 x rel.ok; 6 a rel.call held dl=50; 7 a rel.ok; 8 b ok dl=50; 9 b rel.call held dl=50; 10 b rel.answer since=1; 10 b rel.ok`, `
		0 a call client=c; 1 a ok dl=50; 2 b call client=c; 3 x call; 4 x ok dl=50; 5 x rel.call held dl=50; 5 x rel.answer since=4;
		5 x rel.ok; 6 a rel.call held dl=50; 7 a rel.ok; 8 b ok dl=50; 9 b lost session`},
	{RuleOverlap, "a waiter of the client had its own hold, after the other client's hold", Bounds{Detect: 20 * ms}, `
		0 a call client=c; 1 a ok dl=50; 2 b call client=c; 3 x call; 4 x ok dl=50; 6 a rel.call held dl=50; 7 a rel.ok;
		8 x rel.call held dl=50; 8 x rel.answer since=4; 8 x rel.ok; 9 b ok dl=50; 10 b rel.call held dl=50; 11 b rel.answer since=7; 11 b rel.ok`, `
		0 a call client=c; 1 a ok dl=50; 2 b call client=c; 3 x call; 4 x ok dl=50; 6 a rel.call held dl=50; 7 a rel.ok;
		8 x rel.call held dl=50; 8 x rel.answer since=4; 8 x rel.ok; 9 b ok dl=50; 10 b rel.call held dl=50; 11 b rel.answer since=8; 11 b rel.ok`},
	{RuleOverlap, "a process was killed, but only later", Bounds{MaxUnknown: 1}, `
		0 p1/a call; 1 p1/a ok dl=50; 2 b call; 6 b ok dl=60; 7 p1/z call; 8 f fault.on kill=p1; 9 f fault.off;
		70 c call; 71 c ok dl=90`, `
		0 p1/a call; 1 p1/a ok dl=50; 2 b call; 5 p1/z call; 6 f fault.on kill=p1; 7 b ok dl=60; 9 f fault.off;
		70 c call; 71 c ok dl=90`},
	{RuleOverlap, "an overlap at one moment of a fake clock", Bounds{}, `
		5 a call; 5 a ok dl=50; 5 b call; 5 b ok dl=50; 5 a rel.call held dl=50; 5 b rel.call held dl=50`, `
		5 a call; 5 a ok dl=50; 5 b call; 5 a rel.call held dl=50; 5 b ok dl=50; 5 b rel.call held dl=50`},
	{RuleOverlap, "an overlap of two processes at the same time", Bounds{}, `
		4 p1/a call; 5 p1/a ok dl=50; 5 p2/b call; 6 p2/b ok dl=50; 7 p1/a rel.call held dl=50`, `
		4 p2/a call; 5 p2/a ok dl=50; 5 p1/b call; 7 p1/b ok dl=50; 7 p2/a rel.call held dl=50`},
	{RuleOverlap, "a writer overlaps with a reader", Bounds{}, `
		0 a call read; 1 a ok dl=50; 2 b call read; 3 b ok dl=50; 4 a rel.call held dl=50; 5 a rel.ok; 6 c call write; 7 c ok dl=60;
		8 b rel.call held dl=50`, `
		0 a call read; 1 a ok dl=50; 2 b call read; 3 b ok dl=50; 4 a rel.call held dl=50; 5 a rel.ok; 6 c call read; 7 c ok dl=60;
		8 b rel.call held dl=50`},
	{RuleOverlap, "a reader overlaps with a writer", Bounds{}, `
		0 a call write; 1 a ok dl=50; 2 b call read; 3 b ok dl=50; 5 a rel.call held dl=50`, `
		0 a call write; 1 a ok dl=50; 2 b call read; 2 a rel.call held dl=50; 3 b ok dl=50; 4 c call read; 4 c ok dl=50`},
	{RuleOverlap, "a plain lock overlaps with a writer", Bounds{}, `
		0 a call write; 1 a ok dl=50; 2 b call; 3 b ok dl=50; 4 b rel.call held dl=50; 5 a rel.call held dl=50`, `
		0 a call write; 1 a ok dl=50; 2 b call; 2 a rel.call held dl=50; 3 b ok dl=50`},
	{RuleOverlap, "the first of two readers outlives the second", Bounds{}, `
		0 a call read; 1 a ok dl=50; 2 b call read; 3 b ok dl=20; 30 c call; 31 c ok dl=60`, `
		0 a call read; 1 a ok dl=30; 2 b call read; 3 b ok dl=20; 30 c call; 31 c ok dl=60`},
	{RuleOverlap, "a reader inside a writer's hold that the backend confirmed at the release", Bounds{Detect: 20 * ms}, `
		0 a call client=c owner=o write; 1 a ok dl=50; 2 b call client=c owner=o read; 3 b ok dl=50; 4 a rel.call held dl=50; 4 a rel.ok;
		5 x call read; 6 x ok dl=60; 7 b rel.call held dl=50; 8 b rel.answer since=1 write; 8 b rel.ok; 9 x rel.call held dl=60;
		10 x rel.answer since=6 read; 10 x rel.ok`, `
		0 a call client=c owner=o read; 1 a ok dl=50; 2 b call client=c owner=o read; 3 b ok dl=50; 4 a rel.call held dl=50; 4 a rel.ok;
		5 x call read; 6 x ok dl=60; 7 b rel.call held dl=50; 8 b rel.answer since=1 read; 8 b rel.ok; 9 x rel.call held dl=60;
		10 x rel.answer since=6 read; 10 x rel.ok`},

	{RuleStale, "a stale access was accepted", Bounds{StoreFences: true}, `
		0 a call; 1 a ok tok=1 dl=5; 2 b call; 6 b ok tok=2 dl=50; 7 s cs.write tok=2 accepted;
		8 s cs.write tok=1 accepted`, `
		0 a call; 1 a ok tok=1 dl=5; 2 b call; 6 b ok tok=2 dl=50; 7 s cs.write tok=2 accepted; 8 s cs.write tok=1`},
	{RuleStale, "an access that is stale because of an access before the last", Bounds{StoreFences: true, MinClients: 1}, `
		0 a call; 1 a ok; 2 s cs.write tok=3 accepted; 3 s cs.write tok=1; 4 s cs.write tok=2 accepted`, `
		0 a call; 1 a ok; 2 s cs.write tok=2 accepted; 3 s cs.write tok=3; 4 s cs.write tok=2 accepted`},

	{RuleStale, "a late access by a reader", Bounds{StoreFences: true}, `
		0 a call read; 1 a ok tok=1 dl=5; 2 b call write; 6 b ok tok=2 dl=50; 7 s cs.write tok=2 accepted;
		8 s cs.read tok=1 accepted`, `
		0 a call read; 1 a ok tok=1 dl=5; 2 b call write; 6 b ok tok=2 dl=50; 7 s cs.write tok=2 accepted; 8 s cs.read tok=1`},
	{RuleStale, "an access by a reader does not make other readers stale", Bounds{StoreFences: true}, `
		0 a call read; 1 a ok tok=2 dl=50; 2 b call read; 3 b ok tok=3 dl=50; 4 s cs.read tok=3 accepted; 5 s cs.write tok=3 accepted`, `
		0 a call read; 1 a ok tok=2 dl=50; 2 b call read; 3 b ok tok=3 dl=50; 4 s cs.read tok=3 accepted; 5 s cs.read tok=2 accepted`},
	{RuleStale, "a reader may write only inside a writer's hold", Bounds{StoreFences: true, MinClients: 1}, `
		0 a call client=c owner=o read; 1 a ok tok=2 dl=50; 2 b call client=c owner=o read; 3 b ok tok=2 dl=50; 4 s cs.write tok=2 accepted`, `
		0 a call client=c owner=o write; 1 a ok tok=2 dl=50; 2 b call client=c owner=o read; 3 b ok tok=2 dl=50; 4 s cs.write tok=2 accepted`},

	{RuleTokens, "tokens of consecutive holds are equal", Bounds{Fenced: true}, `
		0 a call; 1 a ok tok=7 dl=50; 2 a rel.call held dl=50; 3 a rel.ok; 2 b call; 4 b ok tok=7 dl=50`, `
		0 a call; 1 a ok tok=7 dl=50; 2 a rel.call held dl=50; 3 a rel.ok; 2 b call; 4 b ok tok=8 dl=50`},
	{RuleTokens, "a token falls below the token before the last", Bounds{Fenced: true}, `
		0 a call; 1 a ok tok=7 dl=2; 2 b call; 3 b ok tok=9 dl=4; 3 c call; 5 c ok tok=8 dl=50`, `
		0 a call; 1 a ok tok=7 dl=2; 2 b call; 3 b ok tok=8 dl=4; 3 c call; 5 c ok tok=9 dl=50`},
	{RuleTokens, "no token", Bounds{Fenced: true}, `
		0 a call; 1 a ok dl=50; 2 a rel.call held dl=50; 3 a rel.ok; 50 b call; 51 b ok tok=1 dl=90`, `
		0 a call; 1 a ok dl=5; 50 b call; 51 b ok tok=1 dl=90`},
	{RuleTokens, "no token, and the lease is held later", Bounds{Fenced: true}, `
		0 a call; 1 a ok dl=50; 3 a valid held dl=50; 50 b call; 51 b ok tok=1 dl=90`, `
		0 a call; 1 a ok tok=1 dl=50; 50 b call; 51 b ok tok=2 dl=90`},
	{RuleTokens, "a hold that had ended when it returned may be older than a hold that returned earlier, if it was requested earlier",
		Bounds{Fenced: true}, `
		0 b call; 1 b ok tok=2 dl=50; 5 a call; 60 a ok tok=1 dl=40`, `
		0 a call; 1 b call; 2 b ok tok=2 dl=50; 60 a ok tok=1 dl=40`},
	{RuleTokens, "only a re-entry has the token of its outer hold", Bounds{Fenced: true, MinClients: 1}, `
		0 a call client=c owner=o; 1 a ok tok=3 dl=50; 2 a rel.call held dl=50; 3 a rel.ok; 4 b call client=c owner=o;
		5 b ok tok=3 dl=50`, `
		0 a call client=c owner=o; 1 a ok tok=3 dl=50; 2 b call client=c owner=o; 3 b ok tok=3 dl=50;
		4 b rel.call held dl=50; 5 b rel.ok`},
	{RuleTokens, "a re-entry after a renewal that was not recorded", Bounds{Fenced: true, MinClients: 1}, `
		0 a call client=c owner=o; 1 a ok tok=3 dl=50; 60 b call client=c owner=o; 61 b ok tok=2 dl=90`, `
		0 a call client=c owner=o; 1 a ok tok=3 dl=50; 60 b call client=c owner=o; 61 b ok tok=3 dl=90`},

	{RuleTokens, "a reader's token is not above an earlier writer's token", Bounds{Fenced: true}, `
		0 a call write; 1 a ok tok=3 dl=50; 2 a rel.call held dl=50; 3 a rel.ok; 4 b call read; 5 b ok tok=3 dl=50`, `
		0 a call read; 1 a ok tok=3 dl=50; 2 a rel.call held dl=50; 3 a rel.ok; 4 b call read; 5 b ok tok=3 dl=50; 6 c call read; 7 c ok tok=2 dl=50`},
	{RuleTokens, "a writer's token is not above the token of a reader before the last", Bounds{Fenced: true}, `
		0 a call read; 1 a ok tok=3 dl=50; 2 b call read; 3 b ok tok=1 dl=50; 4 a rel.call held dl=50; 5 a rel.ok; 6 b rel.call held dl=50; 7 b rel.ok;
		8 c call write; 9 c ok tok=2 dl=50`, `
		0 a call read; 1 a ok tok=3 dl=50; 2 b call read; 3 b ok tok=1 dl=50; 4 a rel.call held dl=50; 5 a rel.ok; 6 b rel.call held dl=50; 7 b rel.ok;
		8 c call write; 9 c ok tok=4 dl=50`},
	{RuleTokens, "a reader may have joined a removed hold, unless the backend confirmed the hold at its release", Bounds{Fenced: true, Detect: 20 * ms}, `
		0 w call write; 1 w ok tok=5 dl=3; 2 w rel.call held dl=3; 2 w rel.answer since=1 write; 2 w rel.ok;
		3 a call read client=a; 4 a ok tok=4 dl=50; 5 a rel.call held dl=50; 6 a rel.answer since=4 read; 6 a rel.ok`, `
		0 a call read client=a; 1 a ok tok=4 dl=50; 2 w call write; 3 w ok tok=5 dl=50; 4 b call read client=a; 4 b ok tok=4 dl=50; 5 a rel.call held dl=50;
		5 a rel.ok; 6 b lost removed; 7 w rel.call held dl=50; 7 w rel.answer since=3 write; 7 w rel.ok`},

	{RuleTokens, "a hold whose session had ended may have been passed on, if the previous holder still had it", Bounds{Fenced: true, Detect: 20 * ms}, `
		0 a call client=c; 1 a ok tok=1 dl=50; 2 x call; 3 x ok tok=5 dl=60; 4 a rel.call held dl=50; 4 a rel.ok; 5 b call client=c; 6 b ok tok=2 dl=50;
		7 b lost session; 8 x rel.call held dl=60; 9 x rel.answer since=3; 9 x rel.ok`, `
		0 a call client=c; 1 a ok tok=1 dl=50; 2 x call; 3 x ok tok=5 dl=60; 4 b call client=c; 5 a rel.call held dl=50; 5 a rel.ok; 6 b ok tok=2 dl=50;
		7 b lost session; 8 x rel.call held dl=60; 9 x rel.answer since=3; 9 x rel.ok`},
	{RuleTokens, "such a hold may have been passed on again, but not to another client", Bounds{Fenced: true, Detect: 20 * ms}, `
		0 a call client=c; 1 a ok tok=1 dl=50; 2 x call; 3 x ok tok=5 dl=60; 4 b call client=c; 5 a rel.call held dl=50; 5 a rel.ok; 6 b ok tok=2 dl=50;
		7 d call client=d; 8 b rel.call held dl=50; 8 b rel.ok; 9 d ok tok=3 dl=50; 10 d lost session; 11 x rel.call held dl=60; 12 x rel.answer since=3;
		12 x rel.ok`, `
		0 a call client=c; 1 a ok tok=1 dl=50; 2 x call; 3 x ok tok=5 dl=60; 4 b call client=c; 5 a rel.call held dl=50; 5 a rel.ok; 6 b ok tok=2 dl=50;
		7 d call client=c; 8 b rel.call held dl=50; 8 b rel.ok; 9 d ok tok=3 dl=50; 10 d lost session; 11 x rel.call held dl=60; 12 x rel.answer since=3;
		12 x rel.ok`},
	{RuleTokens, "a hold that the backend confirmed at its release was not passed on", Bounds{Fenced: true, Detect: 20 * ms}, `
		0 x call; 1 x ok tok=5 dl=3; 2 x rel.call held dl=3; 2 x rel.answer since=1; 2 x rel.ok; 2 a call client=c; 3 a ok tok=6 dl=50; 4 b call client=c;
		5 a rel.call held dl=50; 6 a rel.answer since=3; 6 a rel.ok; 7 b ok tok=4 dl=50; 8 b rel.call held dl=50; 8 b rel.ok`, `
		0 a call client=c; 0 x call; 1 x ok tok=5 dl=3; 2 x rel.call held dl=3; 2 x rel.answer since=1; 2 x rel.ok; 3 a ok tok=6 dl=50; 4 b call client=c;
		5 a rel.call held dl=50; 6 a rel.ok; 7 b ok tok=7 dl=50; 8 b rel.call held dl=50; 8 b rel.ok`},
	{RuleTokens, "a re-entry into a hold whose session had ended, unless the backend had the hold until it was released", Bounds{Fenced: true, Detect: 20 * ms}, `
		0 x call; 1 x ok tok=5 dl=3; 2 x rel.call held dl=3; 2 x rel.answer since=1; 2 x rel.ok; 3 b call client=c owner=o; 4 b ok tok=2 dl=50;
		5 b rel.call held dl=50; 6 b rel.answer since=4; 6 b rel.ok`, `
		0 a call client=c owner=o; 1 a ok tok=2 dl=50; 2 x call; 3 x ok tok=5 dl=60; 4 b call client=c owner=o; 5 b ok tok=2 dl=50; 6 a lost session;
		6 b lost session; 7 x rel.call held dl=60; 8 x rel.answer since=3; 8 x rel.ok`},

	{RuleLoss, "notified too late that the hold was removed", Bounds{Detect: 5 * ms}, `
		0 a call; 1 a ok dl=50; 2 b call; 9 b ok dl=60; 15 a lost removed`, `
		0 a call; 1 a ok dl=50; 2 b call; 9 b ok dl=60; 14 a lost removed`},
	{RuleLoss, "the lease reports that it is held long after its removal", Bounds{Detect: 5 * ms}, `
		0 a call; 1 a ok dl=50; 2 b call; 9 b ok dl=60; 15 a valid held dl=50; 20 a valid removed dl=50`, `
		0 a call; 1 a ok dl=50; 2 b call; 9 b ok dl=60; 14 a valid held dl=50; 20 a valid removed dl=50`},
	{RuleLoss, "notified by Unlock", Bounds{Detect: 5 * ms}, `
		0 a call; 1 a ok dl=50; 2 b call; 9 b ok dl=60; 15 a rel.call held dl=50; 16 a rel.err removed`, `
		0 a call; 1 a ok dl=50; 2 b call; 9 b ok dl=60; 14 a rel.call held dl=50; 16 a rel.err removed`},
	{RuleOverlap, "a hold that Unlock ends was not removed", Bounds{Detect: 5 * ms}, `
		0 a call; 1 a ok dl=50; 2 b call; 9 b ok dl=60; 10 a rel.call held dl=50; 16 a rel.answer since=1; 16 a rel.ok`, `
		0 a call; 1 a ok dl=50; 2 b call; 9 b ok dl=60; 10 a rel.call held dl=50; 16 a rel.err unknown`},
	{RuleLoss, "notified by the first of two reports", Bounds{}, `
		0 a call; 1 a ok dl=50; 2 b call; 9 b ok dl=60; 10 a valid held dl=50; 11 a valid removed; 12 a lost removed`, `
		0 a call; 1 a ok dl=50; 2 b call; 7 a valid removed; 9 b ok dl=60; 12 a lost removed`},
	{RuleLoss, "a query after the loss changes nothing", Bounds{}, `
		0 a call; 1 a ok dl=50; 2 b call; 9 b ok dl=60; 10 a lost removed; 12 a valid removed dl=50`, `
		0 a call; 1 a ok dl=50; 2 b call; 8 a lost removed; 9 b ok dl=60; 12 a valid removed dl=50`},
	{RuleOverlap, "a removed hold may run out before its holder is notified", Bounds{Detect: 5 * ms}, `
		0 a call; 1 a ok dl=50; 2 b call; 44 b ok dl=60`, `
		0 a call; 1 a ok dl=50; 2 b call; 45 b ok dl=60`},
	{RuleLoss, "no client removes holds", Bounds{}, `
		0 a call; 1 a ok dl=50; 2 b call; 9 b ok dl=60; 10 a lost session`, `
		0 a call; 1 a ok dl=50; 2 b call; 9 a lost session; 9 b ok dl=60`},
	{RuleLoss, "the lease still reported that it was held", Bounds{}, `
		0 a call; 1 a ok dl=50; 2 b call; 9 b ok dl=60; 12 a valid held dl=50; 13 a valid removed dl=50`, `
		0 a call; 1 a ok dl=50; 2 b call; 9 b ok dl=60; 13 a valid removed dl=50`},

	{RuleWake, "no client is granted a free lock", Bounds{Wake: 10 * ms}, `
		0 a call; 1 a ok dl=90; 2 b call; 3 a rel.call held dl=90; 4 a rel.ok; 15 b ok dl=90`, `
		0 a call; 1 a ok dl=90; 2 b call; 3 a rel.call held dl=90; 4 a rel.ok; 14 b ok dl=90`},
	{RuleWake, "the waiter gives up", Bounds{Wake: 10 * ms, MinClients: 1}, `
		0 a call; 1 a ok dl=90; 2 b call; 3 a rel.call held dl=90; 4 a rel.ok; 15 b err deadline`, `
		0 a call; 1 a ok dl=90; 2 b call; 3 a rel.call held dl=90; 4 a rel.ok; 14 b err deadline`},
	{RuleWake, "another client acquires the lock instead", Bounds{Wake: 10 * ms}, `
		0 a call; 1 a ok dl=90; 2 b call; 3 a rel.call held dl=90; 4 a rel.ok; 14 c call nowait; 15 c ok dl=90;
		16 c rel.call held dl=90; 17 c rel.ok; 18 b ok dl=90`, `
		0 a call; 1 a ok dl=90; 3 a rel.call held dl=90; 4 a rel.ok; 5 b call; 14 c call nowait; 15 c ok dl=90;
		16 c rel.call held dl=90; 17 c rel.ok; 18 b ok dl=90`},
	{RuleWake, "an attempt that gave up may have held the lock, a refused attempt did not", Bounds{Wake: 10 * ms}, `
		0 a call; 1 a ok dl=90; 2 b call; 3 a rel.call held; 4 a rel.ok; 5 c call nowait; 10 c refused locked; 15 b ok dl=90`, `
		0 a call; 1 a ok dl=90; 2 b call; 3 a rel.call held; 4 a rel.ok; 5 c call; 10 c err canceled; 15 b ok dl=90`},
	{RuleWake, "free after a hold that ran out", Bounds{Wake: 10 * ms, Linger: 20 * ms}, `
		0 a call; 1 a ok dl=30; 2 b call; 30 a lost notheld; 61 b ok dl=90`, `
		0 a call; 1 a ok dl=30; 2 b call; 30 a lost notheld; 60 b ok dl=90`},
	{RuleWake, "free after a hold that was found to have ended", Bounds{Wake: 10 * ms, Linger: 20 * ms}, `
		0 a call; 1 a ok dl=30; 2 b call; 30 a valid notheld; 61 b ok dl=90`, `
		0 a call; 1 a ok dl=30; 2 b call; 30 a valid notheld; 60 b ok dl=90`},
	{RuleWake, "free after the holder was notified, although it calls Unlock much later", Bounds{Wake: 10 * ms, Linger: 20 * ms}, `
		0 a call; 1 a ok dl=30; 2 b call; 30 a lost notheld; 58 a rel.call dl=30 notheld; 59 a rel.err notheld; 61 b ok dl=90`, `
		0 a call; 1 a ok dl=30; 2 b call; 30 a lost notheld; 58 a rel.call dl=30 notheld; 59 a rel.err notheld; 60 b ok dl=90`},
	{RuleWake, "free after the backend's answer, although Unlock had given up", Bounds{Wake: 10 * ms, Linger: 20 * ms}, `
		0 a call; 1 a ok dl=90; 2 b call; 3 a rel.call held; 4 a rel.err unknown; 6 a rel.answer since=1; 17 b ok dl=90`, `
		0 a call; 1 a ok dl=90; 2 b call; 3 a rel.call held; 4 a rel.err unknown; 6 a rel.answer since=1; 16 b ok dl=90`},
	{RuleWake, "free after an attempt with an unknown outcome", Bounds{Wake: 10 * ms, Linger: 20 * ms, MaxUnknown: 1}, `
		0 a call; 5 a err unknown; 6 b call; 36 b ok dl=90; 37 b rel.call held dl=90; 38 b rel.ok; 39 c call;
		40 c ok dl=90`, `
		0 a call; 5 a err unknown; 6 b call; 35 b ok dl=90; 36 b rel.call held dl=90; 37 b rel.ok; 39 c call;
		40 c ok dl=90`},
	{RuleWake, "free after a fault", Bounds{Wake: 10 * ms, Recover: 30 * ms}, `
		0 a call; 1 a ok dl=99; 2 b call; 3 f fault.on freeze; 4 a rel.call held dl=90; 5 a rel.ok; 20 f fault.off;
		51 b ok dl=99`, `
		0 a call; 1 a ok dl=99; 2 b call; 3 f fault.on freeze; 4 a rel.call held dl=90; 5 a rel.ok; 20 f fault.off;
		50 b ok dl=99`},
	{RuleWake, "free long before a fault", Bounds{Wake: 10 * ms, Recover: 30 * ms}, `
		0 a call; 1 a ok dl=99; 2 b call; 4 a rel.call held dl=90; 5 a rel.ok; 16 f fault.on freeze; 20 f fault.off;
		25 b ok dl=99`, `
		0 a call; 1 a ok dl=99; 2 b call; 4 a rel.call held dl=90; 5 a rel.ok; 15 f fault.on freeze; 20 f fault.off;
		25 b ok dl=99`},
	{RuleWake, "only the last release of a re-entrant hold frees the lock", Bounds{Wake: 10 * ms}, `
		0 a call client=c owner=o; 1 a ok dl=90; 2 b call client=c owner=o; 3 b ok dl=90; 4 x call;
		5 b rel.call held dl=90; 6 b rel.ok; 7 a rel.call held dl=90; 8 a rel.ok; 19 x ok dl=90`, `
		0 a call client=c owner=o; 1 a ok dl=90; 2 b call client=c owner=o; 3 b ok dl=90; 4 x call;
		5 b rel.call held dl=90; 6 b rel.ok; 27 a rel.call held dl=90; 28 a rel.ok; 29 x ok dl=90`},

	{RuleWake, "a reader waits although only readers hold the lock", Bounds{Wake: 10 * ms}, `
		0 a call read; 1 a ok dl=90; 2 b call write; 3 b err canceled; 3 c call read; 14 c ok dl=90`, `
		0 a call read; 1 a ok dl=90; 2 b call write; 3 c call read; 4 b err canceled; 14 c ok dl=90`},
	{RuleWake, "a reader waits although the writer is gone and others read", Bounds{Wake: 10 * ms}, `
		0 a call write; 1 a ok dl=90; 2 b call read; 2 c call read; 3 a rel.call held dl=90; 4 a rel.ok; 5 b ok dl=90; 15 c err canceled`, `
		0 a call write; 1 a ok dl=90; 2 b call read; 2 c call read; 3 a rel.call held dl=90; 4 a rel.ok; 5 b ok dl=90; 14 c err canceled`},
	{RuleWake, "a waiting writer goes first, a writer that does not wait does not", Bounds{Wake: 10 * ms}, `
		0 a call read; 1 a ok dl=90; 2 b call read; 3 c call write nowait; 12 c refused locked; 13 b ok dl=90`, `
		0 a call read; 1 a ok dl=90; 2 b call read; 3 c call write; 12 c err canceled; 13 b ok dl=90`},
	{RuleWake, "a reader's wait for a free lock ends with the grant to a writer", Bounds{Wake: 10 * ms}, `
		0 a call; 1 a ok dl=90; 2 b call read; 3 a rel.call held dl=90; 4 a rel.ok; 14 c call write nowait; 15 c ok dl=90;
		16 c rel.call held dl=90; 17 c rel.ok; 18 b ok dl=90`, `
		0 a call; 1 a ok dl=90; 2 b call read; 3 a rel.call held dl=90; 4 a rel.ok; 13 c call write nowait; 14 c ok dl=90;
		16 c rel.call held dl=90; 17 c rel.ok; 18 b ok dl=90`},
	{RuleWake, "a writer waits for all readers", Bounds{Wake: 10 * ms}, `
		0 a call read; 1 a ok dl=90; 2 b call read; 3 b ok dl=90; 4 c call write; 5 b rel.call held dl=90; 6 b rel.ok;
		7 a rel.call held dl=90; 8 a rel.ok; 19 c ok dl=90`, `
		0 a call read; 1 a ok dl=90; 2 b call read; 3 b ok dl=90; 4 c call write; 5 b rel.call held dl=90; 6 b rel.ok;
		17 a rel.call held dl=90; 18 a rel.ok; 19 c ok dl=90`},

	{RuleStuck, "an attempt lasts too long", Bounds{Stuck: 30 * ms}, `
		0 a call; 1 a ok dl=90; 2 b call; 31 a rel.call held dl=90; 32 a rel.ok; 33 b ok dl=90`, `
		0 a call; 1 a ok dl=90; 2 b call; 31 a rel.call held dl=90; 31 a rel.ok; 32 b ok dl=90`},
	{RuleStuck, "an attempt does not return", Bounds{Stuck: 30 * ms, MinClients: 1, MaxUnknown: 1}, `
		0 a call; 1 a ok dl=90; 2 b call; 33 z call nowait; 33 z refused locked`, `
		0 a call; 1 a ok dl=90; 2 b call; 32 z call nowait; 32 z refused locked`},
	{RuleStuck, "an attempt lasts too long after a fault", Bounds{Stuck: 30 * ms}, `
		0 a call; 1 a ok dl=90; 2 b call; 3 f fault.on freeze; 50 f fault.off; 81 b err deadline;
		82 a rel.call held dl=90; 83 a rel.ok; 84 c call; 85 c ok dl=99`, `
		0 a call; 1 a ok dl=90; 2 b call; 3 f fault.on freeze; 50 f fault.off; 80 b err deadline;
		82 a rel.call held dl=90; 83 a rel.ok; 84 c call; 85 c ok dl=99`},
	{RuleStuck, "refused while free", Bounds{Wake: 5 * ms, MinClients: 1}, `
		0 a call; 1 a ok dl=90; 2 a rel.call held dl=90; 3 a rel.ok; 9 b call nowait; 10 b refused locked`, `
		0 a call; 1 a ok dl=90; 2 a rel.call held dl=90; 3 a rel.ok; 8 b call nowait; 10 b refused locked`},
	{RuleStuck, "refused because of an attempt that gave up", Bounds{Wake: 5 * ms, MinClients: 1}, `
		0 a call; 1 a ok dl=90; 2 c call; 3 a rel.call held dl=90; 4 a rel.ok; 5 c err canceled; 11 b call nowait;
		12 b refused locked`, `
		0 a call; 1 a ok dl=90; 2 c call; 3 a rel.call held dl=90; 4 a rel.ok; 5 c err canceled; 10 b call nowait;
		12 b refused locked`},
	{RuleStuck, "refused after a fault that may have left anything", Bounds{Wake: 5 * ms}, `
		0 a call; 1 a ok dl=90; 2 a rel.call held; 3 a rel.ok; 20 b call nowait; 21 b refused locked; 40 c call; 41 c ok dl=90`, `
		0 a call; 1 a ok dl=90; 2 a rel.call held; 3 a rel.ok; 5 f fault.on freeze; 6 f fault.off; 20 b call nowait;
		21 b refused locked; 40 c call; 41 c ok dl=90`},
	{RuleStuck, "refused long after a kill", Bounds{Wake: 5 * ms, Linger: 20 * ms, MinClients: 1}, `
		0 p1/a call; 1 p1/a ok dl=20; 2 f fault.on kill=p1; 3 f fault.off; 29 b call nowait; 30 b refused locked;
		40 c call; 41 c ok dl=90`, `
		0 p1/a call; 1 p1/a ok dl=20; 2 f fault.on kill=p1; 3 f fault.off; 28 b call nowait; 30 b refused locked;
		40 c call; 41 c ok dl=90`},

	{RuleStuck, "a reader is refused while only readers hold the lock", Bounds{Wake: 5 * ms}, `
		0 a call read; 1 a ok dl=90; 9 b call read nowait; 10 b refused locked; 11 c call read; 12 c ok dl=90`, `
		0 a call read; 1 a ok dl=90; 9 b call write nowait; 10 b refused locked; 11 c call read; 12 c ok dl=90`},

	{RuleResult, "the release of a hold that had run out succeeds", Bounds{}, `
		0 a call; 1 a ok dl=30; 2 b call; 31 b ok dl=90; 37 a rel.call notheld; 38 a rel.ok`, `
		0 a call; 1 a ok dl=30; 2 b call; 31 b ok dl=90; 37 a rel.call notheld; 38 a rel.err notheld`},
	{RuleResult, "the release of a lost hold succeeds", Bounds{MinClients: 1}, `
		0 a call; 1 a ok dl=30; 5 a lost removed; 6 a rel.call removed; 7 a rel.ok`, `
		0 a call; 1 a ok dl=30; 5 a lost removed; 6 a rel.call removed; 7 a rel.err removed`},
	{RuleResult, "released twice", Bounds{MinClients: 1}, `
		0 a call; 1 a ok dl=30; 5 a rel.call held dl=30; 6 a rel.ok; 7 a rel.call notheld; 8 a rel.ok`, `
		0 a call; 1 a ok dl=30; 5 a rel.call held dl=30; 6 a rel.ok; 7 a rel.call notheld; 8 a rel.err notheld`},
	{RuleResult, "lost twice", Bounds{MinClients: 1}, `
		0 a call; 1 a ok dl=30; 5 a lost removed; 6 a lost removed`, `
		0 a call; 1 a ok dl=30; 5 a lost removed`},
	{RuleResult, "Done reports a loss, but Err does not", Bounds{MinClients: 1}, `
		0 a call; 1 a ok dl=30; 5 a lost`, `
		0 a call; 1 a ok dl=30; 5 a lost notheld`},
	{RuleResult, "held after the loss", Bounds{MinClients: 1}, `
		0 a call; 1 a ok dl=30; 5 a lost removed; 6 a valid held dl=30`, `
		0 a call; 1 a ok dl=30; 5 a lost removed; 5 a valid held dl=30`},
	{RuleResult, "held after it was found to have ended", Bounds{MinClients: 1}, `
		0 a call; 1 a ok dl=30; 5 a valid notheld; 6 a valid held dl=30`, `
		0 a call; 1 a ok dl=30; 5 a valid held dl=30; 6 a valid notheld`},
	{RuleResult, "held after the release", Bounds{MinClients: 1}, `
		0 a call; 1 a ok dl=30; 5 a rel.call held dl=30; 6 a rel.ok; 7 a valid held dl=30`, `
		0 a call; 1 a ok dl=30; 5 a rel.call held dl=30; 6 a rel.ok; 7 a valid notheld dl=30`},
	{RuleResult, "held after its deadline", Bounds{MinClients: 1}, `
		0 a call; 1 a ok dl=30; 31 a valid held dl=30`, `
		0 a call; 1 a ok dl=30; 31 a valid held dl=31`},
	{RuleResult, "an undocumented error", Bounds{MinClients: 1}, `
		0 a call; 1 a ok dl=30; 2 b call; 3 b err other`, `
		0 a call; 1 a ok dl=30; 2 b call; 3 b err closed`},
	{RuleResult, "Lock does not wait", Bounds{MinClients: 1}, `
		0 a call; 1 a ok dl=30; 2 b call; 3 b refused locked`, `
		0 a call; 1 a ok dl=30; 2 b call nowait; 3 b refused locked`},

	{RuleOrder, "overtaken", Bounds{FIFO: true}, `
		0 a call; 1 a ok dl=30; 2 b call; 3 b wait; 4 c call; 5 a rel.call held dl=30; 6 c ok dl=30;
		7 c rel.call held dl=30; 8 b ok dl=30`, `
		0 a call; 1 a ok dl=30; 2 b call; 3 c call; 4 b wait; 5 a rel.call held dl=30; 6 c ok dl=30;
		7 c rel.call held dl=30; 8 b ok dl=30`},
	{RuleOrder, "overtaken by an attempt that began at the same moment", Bounds{FIFO: true}, `
		0 a call; 1 a ok dl=30; 2 b call; 3 b wait; 4 c call; 5 a rel.call held dl=30; 6 c ok dl=30;
		7 c rel.call held dl=30; 8 b ok dl=30`, `
		0 a call; 1 a ok dl=30; 2 b call; 3 b wait; 3 c call; 5 a rel.call held dl=30; 6 c ok dl=30;
		7 c rel.call held dl=30; 8 b ok dl=30`},
	{RuleOrder, "a fault may disturb the queue", Bounds{FIFO: true}, `
		0 a call; 1 a ok dl=30; 2 f fault.on freeze; 3 f fault.off; 4 b call; 5 b wait; 6 c call;
		7 a rel.call held dl=30; 8 c ok dl=30; 9 c rel.call held dl=30; 10 b ok dl=30`, `
		0 a call; 1 a ok dl=30; 4 b call; 5 b wait; 6 c call; 6 f fault.on freeze; 6 f fault.off;
		7 a rel.call held dl=30; 8 c ok dl=30; 9 c rel.call held dl=30; 10 b ok dl=30`},
	{RuleOrder, "a re-entry does not queue, nor does TryLock", Bounds{FIFO: true}, `
		0 a call client=c owner=o; 1 a ok dl=30; 2 b call; 3 b wait; 4 x call client=c owner=other;
		5 a rel.call held dl=30; 6 x ok dl=30; 7 x rel.call held dl=30; 8 b ok dl=30`, `
		0 a call client=c owner=o; 1 a ok dl=30; 2 b call; 3 b wait; 4 x call client=c owner=o; 5 x ok dl=30;
		6 x rel.call held dl=30; 7 a rel.call held dl=30; 8 y call nowait; 9 y ok dl=30; 10 y rel.call held dl=30;
		11 b ok dl=30`},
	{RuleOrder, "a writer is overtaken by a later reader that joined no other", Bounds{FIFO: true}, `
		0 a call read; 1 a ok dl=30; 2 b call write; 3 b wait; 4 c call read; 5 c ok dl=30; 6 a rel.call held dl=30; 6 a rel.ok;
		7 c rel.call held dl=30; 7 c rel.ok; 8 b ok dl=30`, `
		0 a call read client=c; 1 a ok dl=30; 2 b call write; 3 b wait; 4 c call read client=c; 5 c ok dl=30; 6 a rel.call held dl=30; 6 a rel.ok;
		7 c rel.call held dl=30; 7 c rel.ok; 8 b ok dl=30`},
	{RuleOrder, "a reader that was granted together with a reader of its client that gave up", Bounds{FIFO: true}, `
		0 x call; 1 x ok dl=30; 2 b call write; 3 b wait; 4 c call read; 5 x rel.call held; 6 c ok dl=30; 7 c rel.call held; 9 b ok dl=30`, `
		0 x call; 1 x ok dl=30; 1 a call read client=c; 2 b call write; 3 b wait; 4 c call read client=c; 5 x rel.call held; 6 c ok dl=30;
		7 a err canceled; 8 c rel.call held; 9 b ok dl=30`},
	{RuleOrder, "a reader is overtaken by a writer, not by another reader", Bounds{FIFO: true}, `
		0 a call; 1 a ok dl=30; 2 b call read; 3 b wait; 4 c call write; 5 a rel.call held dl=30; 6 c ok dl=30;
		7 c rel.call held dl=30; 8 b ok dl=30`, `
		0 a call; 1 a ok dl=30; 2 b call read; 3 b wait; 4 c call read; 5 a rel.call held dl=30; 6 c ok dl=30;
		7 c rel.call held dl=30; 8 b ok dl=30`},

	{RuleOverlap, "more permits than the limit", Bounds{}, `
		0 a call permit=2/3; 1 a ok dl=50; 2 b call permit=2/3; 3 b ok dl=50`, `
		0 a call permit=2/3; 1 a ok dl=50; 2 b call permit=1/3; 3 b ok dl=50`},
	{RuleOverlap, "permits of an owner add up", Bounds{MinClients: 1}, `
		0 a call client=c owner=o permit=1/1; 1 a ok dl=50; 2 b call client=c owner=o permit=1/1; 3 b ok dl=50`, `
		0 a call client=c owner=o permit=1/1; 1 a ok dl=50; 2 b call client=c owner=o permit=1/1; 2 a rel.call held dl=50; 3 b ok dl=50`},
	{RuleOverlap, "one more permit after the limit was lowered", Bounds{}, `
		0 s limit.call limit=4; 1 s limit.back; 2 a call permit=2/0; 3 a ok dl=900; 4 t limit.call limit=2; 5 t limit.back;
		200 b call permit=1/0; 201 b ok dl=900`, `
		0 s limit.call limit=4; 1 s limit.back; 2 a call permit=2/0; 3 a ok dl=900; 4 t limit.call limit=2; 5 t limit.back unknown;
		200 b call permit=1/0; 201 b ok dl=900`},
	{RuleOverlap, "a hold that was passed on may have been granted before the limit was lowered", Bounds{}, `
		0 s limit.call limit=4; 1 s limit.back; 2 a call permit=4/0; 3 a ok dl=900; 4 t limit.call limit=2; 5 t limit.back;
		6 b call client=a permit=4/0; 7 a rel.call held dl=900; 7 b ok dl=900; 200 c call permit=1/0; 201 c ok dl=900`, `
		0 s limit.call limit=4; 1 s limit.back; 2 a call permit=4/0; 3 a ok dl=900; 4 t limit.call limit=2; 5 t limit.back;
		6 b call client=a permit=4/0; 7 a rel.call held dl=900; 7 b ok dl=900; 200 c call permit=1/0; 201 b rel.call held dl=900; 202 c ok dl=900`},
	{RuleLoss, "a loss of permits that was reported too late", Bounds{}, `
		0 a call permit=1/1; 1 a ok dl=50; 2 b call permit=1/1; 9 b ok dl=60; 12 a lost removed`, `
		0 a call permit=1/1; 1 a ok dl=50; 2 b call permit=1/1; 8 a lost removed; 9 b ok dl=60`},
	{RuleTokens, "permits have no tokens", Bounds{MinClients: 1}, `
		0 a call permit=1/1; 1 a ok tok=1 dl=50`, `
		0 a call permit=1/1; 1 a ok dl=50`},
	{RuleOrder, "a request for many permits is overtaken by a request for few", Bounds{FIFO: true}, `
		0 x call permit=3/4; 1 x ok dl=90; 2 a call permit=2/4; 3 a wait; 4 b call permit=1/4; 5 b ok dl=90; 9 x rel.call held dl=90;
		9 x rel.ok; 10 a ok dl=90`, `
		0 x call permit=3/4; 1 x ok dl=90; 2 a call permit=2/4; 3 a wait; 4 b call permit=1/4; 5 x rel.call held dl=90; 5 x rel.ok;
		6 b ok dl=90; 10 a ok dl=90`},
	{RuleWake, "one permit is free while a client waits for it", Bounds{Wake: 30 * ms}, `
		0 x call permit=3/4; 1 x ok dl=200; 2 a call permit=1/4; 150 a ok dl=200`, `
		0 x call permit=3/4; 1 x ok dl=200; 2 a call permit=2/4; 130 x rel.call held dl=200; 131 x rel.ok; 150 a ok dl=200`},
	{RuleStuck, "refused while enough permits are free", Bounds{Wake: 30 * ms, MinClients: 1}, `
		0 x call permit=3/4; 1 x ok dl=200; 100 a call nowait permit=1/4; 101 a refused locked`, `
		0 x call permit=3/4; 1 x ok dl=200; 100 a call nowait permit=2/4; 101 a refused locked`},
	{RuleResult, "the limit never had another value", Bounds{MinClients: 1}, `
		0 x call permit=3/4; 1 x ok dl=200; 2 a call permit=1/4; 3 a err limit`, `
		0 x call permit=3/4; 1 x ok dl=200; 2 a call permit=1/5; 3 a err limit`},
}

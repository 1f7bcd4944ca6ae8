package contend

// The families of contenders.
const (
	FamilyFloor    = "go-redis"
	FamilyRedlatch = "redlatch"
	FamilyBSM      = "bsm"
	FamilyRedsync  = "redsync"
	FamilyRueidis  = "rueidis"
	FamilyRedisson = "redisson"
)

// The names of the contenders.
const (
	Floor          = "go-redis alone"
	FloorPipelined = "go-redis alone, pipelined"
	FloorQueue     = "go-redis alone, queue"
	FloorHandOff   = "go-redis alone, hand-off"
	FloorBLPOP     = "go-redis alone, BLPOP"
	FloorPubsub    = "go-redis alone, pub/sub"
	FloorPublish   = "go-redis alone, PUBLISH"
	FloorBatches   = "go-redis alone, batches"
	Redlatch       = "redlatch"
	BSM            = "bsm/redislock"
	Redsync        = "redsync"
	Rueidis        = "rueidislock"
	Redisson       = "redisson"
)

// All returns all contenders, by name.
func All() map[string]Contender {
	all := map[string]Contender{}
	for _, c := range []Contender{
		{
			Name: Floor, Family: FamilyFloor,
			Prepare: loadScripts(acquireScript, releaseScript, shardedReleaseScript,
				acquireAllScript, releaseAllScript),
			Open: openPlain,
		},
		{
			Name: FloorPipelined, Family: FamilyFloor,
			Prepare: loadScripts(acquireScript, releaseScript, shardedReleaseScript), Open: openPipelined,
		},
		{
			Name: FloorQueue, Family: FamilyFloor,
			Prepare: loadScripts(acquireScript, releaseScript), Open: openQueue,
		},
		{
			Name: FloorHandOff, Family: FamilyFloor,
			Prepare: loadScripts(acquireScript, handOffScript), Open: openHandOff,
		},
		{
			Name: FloorBLPOP, Family: FamilyFloor,
			Prepare: pushTokens, Open: openToken, Commands: []string{"lpush"},
		},
		{
			Name: FloorPubsub, Family: FamilyFloor,
			Prepare: loadScripts(acquireScript, releaseScript,
				acquireReadScript, releaseReadScript, acquireWriteScript),
			Open: openPubsub,
		},
		{
			Name: FloorPublish, Family: FamilyFloor,
			Prepare: loadScripts(acquireScript, takeOverScript), Open: openPublish, Commands: []string{"publish"},
		},
		{
			Name: FloorBatches, Family: FamilyFloor,
			Prepare: loadScripts(acquireScript, releaseScript, renewScript), Open: openBatches,
		},
		{
			Name: Redlatch, Family: FamilyRedlatch, Module: redlatchModule,
			Prepare: initRedlatch, Open: openRedlatch, Commands: []string{"psetex", "getdel"},
		},
		{Name: BSM, Family: FamilyBSM, Module: bsmModule, Open: openBSM},
		{Name: Redsync, Family: FamilyRedsync, Module: redsyncModule, Open: openRedsync, Commands: []string{"set"}},
		{Name: Rueidis, Family: FamilyRueidis, Module: rueidisModule, Open: openRueidis},
		{Name: Redisson, Family: FamilyRedisson, Missing: "Java was not started"}, // OpenRedisson replaces it
	} {
		all[c.Name] = c
	}
	return all
}

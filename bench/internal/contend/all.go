package contend

// The families of contenders.
const (
	FamilyFloor    = "floor"
	FamilyRedlatch = "redlatch"
	FamilyBSM      = "bsm"
	FamilyRedsync  = "redsync"
	FamilyRedisson = "redisson"
)

// The contenders, by name.
const (
	Floor          = "floor"
	FloorPipelined = "floor, pipelined"
	FloorQueue     = "floor, queue"
	FloorHandOver  = "floor, hand-over"
	FloorBLPOP     = "floor, BLPOP"
	FloorPubsub    = "floor, pub/sub"
	FloorPublish   = "floor, PUBLISH"
	FloorBatches   = "floor, batches"
	Redlatch       = "redlatch"
	BSM            = "bsm/redislock"
	Redsync        = "redsync"
	Redisson       = "redisson"
)

// All returns the contenders, by name.
func All() map[string]Contender {
	all := map[string]Contender{}
	for _, c := range []Contender{
		{Name: Floor, Family: FamilyFloor, Prepare: loading(acquireText, releaseText), Open: openPlain},
		{Name: FloorPipelined, Family: FamilyFloor, Prepare: loading(acquireText, releaseText), Open: openPipelined},
		{Name: FloorQueue, Family: FamilyFloor, Prepare: loading(acquireText, releaseText), Open: openQueue},
		{Name: FloorHandOver, Family: FamilyFloor, Prepare: loading(acquireText, handOverText), Open: openHandOver},
		{Name: FloorBLPOP, Family: FamilyFloor, Prepare: prepareTokens, Open: openToken, Commands: []string{"lpush"}},
		{Name: FloorPubsub, Family: FamilyFloor, Prepare: loading(acquireText, releaseText, readText, unreadText, writeText), Open: openPubsub},
		{Name: FloorPublish, Family: FamilyFloor, Prepare: loading(acquireText, turnText), Open: openPublish, Commands: []string{"publish"}},
		{Name: FloorBatches, Family: FamilyFloor, Prepare: loading(acquireText, releaseText, renewText), Open: openBatches},
		{Name: Redlatch, Family: FamilyRedlatch, Module: redlatchModule, Prepare: prepareRedlatch, Open: openRedlatch, Commands: []string{"psetex", "getdel"}},
		{Name: BSM, Family: FamilyBSM, Module: bsmModule, Open: openBSM},
		{Name: Redsync, Family: FamilyRedsync, Module: redsyncModule, Open: openRedsync, Commands: []string{"set"}},
		{Name: Redisson, Family: FamilyRedisson, Missing: "Java was not started"}, // see OpenRedisson
	} {
		all[c.Name] = c
	}
	return all
}

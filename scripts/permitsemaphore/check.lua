-- permitsemaphore/check: ask whether permits are still held.
-- uses     lib/clock, permitsemaphore/leases
-- KEYS[1]  free permits
-- KEYS[2]  channel
-- KEYS[3]  unused
-- KEYS[4]  leases
-- ARGV[1]  ids of 16 bytes each
-- returns  1 when all are, 0 when not
local permits_key, leases, ids = KEYS[1], KEYS[4], ARGV[1]

local _, live = acquired_permits(leases, ids, now_ms())
return redis.call('exists', permits_key) == 1 and live == #ids / 16 and 1 or 0

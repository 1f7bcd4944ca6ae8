-- permitsemaphore/check: ask whether permits are still held.
-- uses     lib/clock, lib/primary, permitsemaphore/leases
-- KEYS[1]  permits_key: free permits
-- KEYS[2]  channel: no key has its name
-- KEYS[3]  not used
-- KEYS[4]  leases
-- ARGV[1]  ids (text): of 16 bytes each
-- returns  number: 1 when all are, 0 when not
local permits_key, channel, leases, ids = KEYS[1], KEYS[2], KEYS[4], ARGV[1]

require_primary(channel)
local _, live = acquired_permits(leases, ids, now_ms())
return redis.call('type', permits_key).ok == 'string' and live == #ids / 16 and 1 or 0

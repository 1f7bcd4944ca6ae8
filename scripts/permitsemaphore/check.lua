-- permitsemaphore/check: ask whether permits are still held.
-- uses     permits
-- KEYS[1]  free permits
-- KEYS[2]  channel
-- KEYS[3]  no memory
-- KEYS[4]  leases
-- ARGV[1]  ids of 16 bytes each
-- returns  1 when all are, 0 when not
local _, live = taken(ARGV[1], now())
return redis.call('exists', KEYS[1]) == 1 and live == #ARGV[1] / 16 and 1 or 0

-- lib/set_count: change a count in a lock's hash, and set its TTL.
--
-- A full Redis allows the first write, and then the others. The TTL comes last. PEXPIRE deletes a
-- key whose time is over, which may be now: a key still exists in its last millisecond, with a
-- PTTL of 0. HSET after that would make the hash again, without a TTL, and the lock would never
-- become free.
-- defines  set_count(lock_hash, field, count, ttl_ms): the hash exists
local function set_count(lock_hash, field, count, ttl_ms)
  redis.call('persist', lock_hash)
  redis.call('hset', lock_hash, field, count)
  redis.call('pexpire', lock_hash, math.max(ttl_ms, 1))
end

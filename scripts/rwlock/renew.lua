-- rwlock/renew: extend the leases of many readers, each with its own holds alone; a longer TTL stays.
-- uses     readers, typed
-- KEYS[1..]  of each: lock hash, and the key of its first hold, so that a reader that has moved in part to another node does not look dead
-- ARGV[1..]  of each: owner id and ttl, ms
-- returns    for each, 1, or 0 when the reader is dead; so if the lock's key holds another type
local kept = {}
for i = 1, #KEYS / 2 do
  local hash, id, ttl = KEYS[2 * i - 1], ARGV[2 * i - 1], tonumber(ARGV[2 * i])
  local prefix, count = prefix_of(hash), typed('hash', 'hget', hash, id)
  kept[i] = 0
  if life(prefix, id, count) > 0 then
    -- First a write that a full Redis allows. A hold that had a shorter lease comes back: a reader of Redisson's deletes the keys from above.
    redis.call('pexpire', hash, math.max(redis.call('pttl', hash), ttl))
    for n = 1, tonumber(count) do
      local key = hold_key(prefix, id, n)
      if redis.call('pttl', key) < ttl then
        redis.call('set', key, '1', 'px', ttl)
      end
    end
    kept[i] = 1
  end
end
return kept

-- rwlock/readers: which readers of a read-write lock are alive, and for how long.
--
-- A reader's field in the lock hash counts its holds. Each hold also has a key of its own, which
-- expires with the hold's lease. A reader is alive while one of these keys exists. The hash lives
-- as long as the longest-lived reader. A dead reader's field may stay: it counts for nothing, and
-- the next script that finds it removes it.
-- uses     rwlock/hold_keys
-- defines  holds_of(count), reader_ttl(prefix, id, count, enough),
--          renew_holds(lock_hash, prefix, id, count, ttl_ms),
--          remove_reader(lock_hash, prefix, id, count),
--          lower_count(lock_hash, prefix, id, count, wanted, left),
--          writer_of(lock_hash, entries)

-- holds_of returns how many hold keys of a reader with that count to look at. No program nests
-- 10000 holds: a greater number is not from a lock, and a loop to it could block Redis for hours.
local function holds_of(count)
  return math.min(tonumber(count or 0) or 0, 10000)
end

-- reader_ttl returns the time left, ms, of a reader's longest hold; 0 when the reader is dead. The
-- search begins with the latest hold, and ends at one with at least enough ms left, if that is
-- given: no hold lasts longer than the hash.
local function reader_ttl(prefix, id, count, enough)
  local left = 0
  for n = holds_of(count), 1, -1 do
    left = math.max(left, redis.call('pttl', hold_key(prefix, id, n)))
    if enough and left >= enough then
      return left
    end
  end
  return left
end

-- renew_holds extends a live reader's holds to ttl_ms; a longer TTL stays. The first write is one
-- that a full Redis allows.
local function renew_holds(lock_hash, prefix, id, count, ttl_ms)
  redis.call('pexpire', lock_hash, math.max(redis.call('pttl', lock_hash), ttl_ms))
  -- Set a hold that had a shorter lease and has expired again: a reader of Redisson deletes the
  -- keys from the highest number down.
  for n = 1, holds_of(count) do
    local key = hold_key(prefix, id, n)
    if redis.call('pttl', key) < ttl_ms then
      redis.call('set', key, '1', 'px', ttl_ms)
    end
  end
end

-- remove_reader removes a reader with all its holds.
local function remove_reader(lock_hash, prefix, id, count)
  for n = 1, holds_of(count) do
    redis.call('del', hold_key(prefix, id, n))
  end
  redis.call('hdel', lock_hash, id)
end

-- lower_count lowers a reader's count to wanted, at least 1. The last hold that stays gets a lease
-- of left ms, the longest one so far. The first write is one that a full Redis allows.
local function lower_count(lock_hash, prefix, id, count, wanted, left)
  for n = wanted + 1, holds_of(count) do
    redis.call('del', hold_key(prefix, id, n))
  end
  local last = hold_key(prefix, id, wanted)
  if redis.call('pttl', last) < left then
    redis.call('set', last, '1', 'px', left)
  end
  redis.call('hset', lock_hash, id, wanted)
end

-- writer_of returns the writer's owner id, nil when there is no writer. The hash of a writer has
-- few fields, because it was new when the writer acquired the lock. A caller that has read them
-- passes them.
local function writer_of(lock_hash, entries)
  if not entries and redis.call('hget', lock_hash, 'mode') == 'write' then
    entries = redis.call('hscan', lock_hash, 0, 'count', 10)[2]
  end
  for i = 1, entries and #entries or 0, 2 do
    if string.sub(entries[i], -6) == ':write' then
      return string.sub(entries[i], 1, -7)
    end
  end
end

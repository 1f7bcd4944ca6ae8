-- rwlock/readers: which readers of a read-write lock are alive, and for how long.
--
-- A reader's field in the lock hash counts its holds. Each hold also has a key of its own, which
-- expires with the hold's lease. A reader is alive while one of these keys exists. The hash lives
-- as long as the longest-lived reader. A dead reader's field may stay: it counts for nothing, and
-- the next script that finds it removes it.
--
-- The hold keys are derived from the hash's name. Their common prefix is not a key, so it must not
-- be in KEYS: while a cluster moves the slot, Redis refuses a script with a missing key (TRYAGAIN).
-- uses     lib/holder
-- defines  hold_prefix(lock_hash), hold_key(prefix, id, n), hold_keys_denied(prefix, id),
--          holds_of(count), reader_ttl(prefix, id, count),
--          renew_holds(lock_hash, prefix, id, count, ttl_ms),
--          remove_reader(lock_hash, prefix, id, count),
--          lower_count(lock_hash, prefix, id, count, wanted, left),
--          fit_ttl(lock_hash, prefix, left), writer_of(lock_hash), foreign_data_of(lock_hash),
--          no_rwlock(lock_hash), foreign_to_mode(lock_hash, mode)

-- hold_prefix returns the common prefix of all hold keys: Redisson's suffixName.
local function hold_prefix(lock_hash)
  if string.find(lock_hash, '{', 1, true) then
    return lock_hash .. ':'
  end
  return '{' .. lock_hash .. '}:'
end

-- hold_key returns the key of a reader's n-th hold.
local function hold_key(prefix, id, n)
  return prefix .. id .. ':rwlock_timeout:' .. n
end

-- hold_keys_denied returns nil if the user may use the hold keys, else the error to return. Redis
-- has not checked them, because they are not in KEYS. Servers before 7.0 cannot tell; there it
-- returns nil.
local function hold_keys_denied(prefix, id)
  local key = hold_key(prefix, id, 1)
  if redis.acl_check_cmd and not redis.acl_check_cmd('set', key, '1') then
    return redis.error_reply(
      'NOPERM this user has no permissions to access the keys of readers, ' .. key)
  end
end

-- holds_of returns how many hold keys of a reader with that count to look at. No program nests
-- 10000 holds: a greater number is not from a lock, and a loop to it could block Redis for hours.
local function holds_of(count)
  return math.min(tonumber(count or 0) or 0, 10000)
end

-- reader_ttl returns the time left, ms, of a reader's longest hold; 0 when the reader is dead.
local function reader_ttl(prefix, id, count)
  local left = 0
  for n = 1, holds_of(count) do
    left = math.max(left, redis.call('pttl', hold_key(prefix, id, n)))
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

-- longest_ttl returns the time left of the longest-lived reader, 0 when none is alive. The search
-- ends at a reader with at least enough ms left. It removes the fields of dead readers on its way.
local function longest_ttl(lock_hash, prefix, enough)
  local best, cursor = 0, '0'
  repeat
    local page = redis.call('hscan', lock_hash, cursor, 'count', 100)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      local id, count = page[2][i], tonumber(page[2][i + 1])
      if count and string.sub(id, -6) ~= ':write' then
        local left = reader_ttl(prefix, id, count)
        if left == 0 then
          redis.call('hdel', lock_hash, id)
        end
        best = math.max(best, left)
        if best >= enough then
          return best
        end
      end
    end
  until cursor == '0'
  return best
end

-- fit_ttl sets the hash's TTL to that of its longest-lived reader, after a reader with left ms has
-- left. It returns false, and deletes the hash, when no reader is alive.
--
-- Up to four readers are all looked at. Among more, the search runs only if the reader that left
-- was one of the longest-lived, and only until it finds another one. A difference of 100 ms does
-- not count, so the hash may outlive its readers by that much.
local function fit_ttl(lock_hash, prefix, left)
  local others, enough = redis.call('hlen', lock_hash) - 1, math.huge
  local ttl_ms = others > 4 and redis.call('pttl', lock_hash) or 0
  if ttl_ms > 0 then
    enough = math.max(ttl_ms - 100, 1)
    if left < enough then
      return true
    end
  end
  local best = others > 0 and longest_ttl(lock_hash, prefix, enough) or 0
  if best == 0 then
    redis.call('del', lock_hash)
    return false
  end
  if best < enough then
    redis.call('pexpire', lock_hash, best)
  end
  return true
end

-- writer_of returns the writer's owner id, nil when there is no writer. The hash of a writer has
-- few fields, because it was new when the writer acquired the lock.
local function writer_of(lock_hash)
  if redis.call('hget', lock_hash, 'mode') == 'write' then
    local fields = redis.call('hscan', lock_hash, 0, 'count', 10)[2]
    for i = 1, #fields, 2 do
      if string.sub(fields[i], -6) == ':write' then
        return string.sub(fields[i], 1, -7)
      end
    end
  end
end

-- foreign_data_of returns the error for a key that holds no lock; nil if it does, or is missing.
local function foreign_data_of(lock_hash)
  return select(2, holder_of(lock_hash))
end

-- no_rwlock returns the error for a key that holds anything but a read-write lock.
local function no_rwlock(lock_hash)
  local holder, foreign_data = holder_of(lock_hash)
  if holder and holder ~= '' then
    return foreign('a lock that is no read-write lock')
  end
  return foreign_data
end

-- foreign_to_mode is foreign_data_of at less cost, for a hash with that mode. More than four fields
-- that expire are believed to be readers.
local function foreign_to_mode(lock_hash, mode)
  if mode ~= 'read' and mode ~= 'write' then
    return foreign_data_of(lock_hash)
  end
  local fields = redis.call('hlen', lock_hash)
  if (fields <= 4 or redis.call('pttl', lock_hash) == -1)
    and not has_counts(lock_hash, fields) then
    return foreign_hash(fields)
  end
end

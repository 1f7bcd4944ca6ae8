-- lib/shared_counts: how many counts of a lock's field belong to acquisitions with WithOwner.
--
-- WithOwner lets several acquisitions share one owner id. A private hold may have the same id. Each
-- release must return only its own counts. The hash of shared counts has the same field names as
-- the lock hash. A shared count means nothing once the lock's field is gone.
--
-- If that key has another type, or a field that is no number, there are no shared counts. It stops
-- acquisitions that share an id, but no release.
-- uses     lib/count, lib/extend
-- defines  shared_count(shared_counts, field, held),
--          add_shared_count(shared_counts, field, is_first, ttl_ms),
--          remove_shared_count(shared_counts, field), forget_shared_count(shared_counts, field)

local function read_shared_count(shared_counts, field)
  local value = redis.pcall('hget', shared_counts, field)
  return read_count(type(value) == 'string' and value) or 0
end

-- shared_count returns the shared counts of a field, never more than the counts held.
local function shared_count(shared_counts, field, held)
  return math.min(read_shared_count(shared_counts, field), held)
end

-- keep_shared_counts extends the hash's TTL to a day, or to ttl_ms if that is longer.
local function keep_shared_counts(shared_counts, ttl_ms)
  extend(shared_counts, math.max(86400000, tonumber(ttl_ms or 0)))
end

-- add_shared_count adds one count. The first count of a lock's field starts from 1: an older number
-- belongs to a field that is gone. Call it before the lock changes: it fails for a key of another
-- type.
local function add_shared_count(shared_counts, field, is_first, ttl_ms)
  if is_first then
    redis.call('hset', shared_counts, field, 1)
  else
    redis.call('hincrby', shared_counts, field, 1)
  end
  keep_shared_counts(shared_counts, ttl_ms)
end

-- remove_shared_count removes one count, if there is one.
local function remove_shared_count(shared_counts, field)
  local shared = read_shared_count(shared_counts, field)
  if shared > 1 then
    keep_shared_counts(shared_counts)
    redis.call('hset', shared_counts, field, shared - 1)
  else
    redis.pcall('hdel', shared_counts, field)
  end
end

-- forget_shared_count removes all counts of a field that is gone.
local function forget_shared_count(shared_counts, field)
  redis.pcall('hdel', shared_counts, field)
end

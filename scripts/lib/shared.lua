-- lib/shared: how many of a field's counts belong to callers of a shared id, those of WithOwner.
--
-- A private hold may have the same id. Each release gives back its own counts only. A field of the shared counts is named as the lock's field
-- is. It is without meaning once the lock's field is gone.
-- defines  shared_of(counts, field, held), share(counts, field, first, ttl), unshare(counts, field)

-- shared_of is never more than the counts held.
local function shared_of(counts, field, held)
  return math.min(tonumber(redis.call('hget', counts, field) or 0), held)
end

-- lasting keeps the shared counts for a day, or for ttl, ms, if that is longer.
local function lasting(counts, ttl)
  ttl = math.max(86400000, tonumber(ttl or 0))
  if redis.call('pttl', counts) < ttl then
    redis.call('pexpire', counts, ttl)
  end
end

-- share adds one count. The first of a lock's field starts from 1: an older number belongs to a field that is gone.
local function share(counts, field, first, ttl)
  if first then
    redis.call('hset', counts, field, 1)
  else
    redis.call('hincrby', counts, field, 1)
  end
  lasting(counts, ttl)
end

-- unshare takes one count, if there is one.
local function unshare(counts, field)
  local shared = tonumber(redis.call('hget', counts, field) or 0)
  if shared > 1 then
    lasting(counts)
    redis.call('hset', counts, field, shared - 1)
  else
    redis.call('hdel', counts, field)
  end
end

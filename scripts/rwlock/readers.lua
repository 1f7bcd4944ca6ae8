-- rwlock/readers: who of a read-write lock's readers is alive, and for how long.
--
-- A reader's field in the hash counts its holds. Beside it, each hold has a key of its own that lives as long as the hold's lease: a reader is
-- alive while one of these is. The hash lives as long as its longest-lived reader. A dead reader's field may stay: it counts for nothing, and
-- whoever looks at it buries it.
--
-- The keys of holds are derived from the hash's name. The prefix is no key, so it must not stand among KEYS: while a cluster moves the
-- slot, a script with a missing key gets TRYAGAIN.
-- defines  prefix_of(hash), hold_key(prefix, id, n), may_hold(prefix, id), raise(key, ttl), life(prefix, id, count),
--          bury(hash, prefix, id, count), shrink(hash, prefix, id, count, wanted, left), longest(hash, prefix, enough),
--          settle(hash, prefix, own), writer_of(hash)

-- prefix_of is what the keys of readers' holds begin with: Redisson's suffixName.
local function prefix_of(hash)
  if string.find(hash, '{', 1, true) then
    return hash .. ':'
  end
  return '{' .. hash .. '}:'
end

local function hold_key(prefix, id, n)
  return prefix .. id .. ':rwlock_timeout:' .. n
end

-- may_hold returns nil if the user may use the keys of holds, else the error to return. Redis has not checked them, because they are
-- not among KEYS. Servers before 7.0 cannot tell.
local function may_hold(prefix, id)
  if redis.acl_check_cmd and not redis.acl_check_cmd('set', hold_key(prefix, id, 1), '1') then
    return redis.error_reply('NOPERM this user has no permissions to access the keys of readers, ' .. hold_key(prefix, id, 1))
  end
end

-- raise never shortens.
local function raise(key, ttl)
  if redis.call('pttl', key) < tonumber(ttl) then
    redis.call('pexpire', key, ttl)
  end
end

-- life is what a reader's longest hold has left, ms; 0 when the reader is dead.
local function life(prefix, id, count)
  local left = 0
  for n = 1, tonumber(count or 0) or 0 do
    left = math.max(left, redis.call('pttl', hold_key(prefix, id, n)))
  end
  return left
end

-- bury takes a reader out with all its holds.
local function bury(hash, prefix, id, count)
  for n = 1, tonumber(count) do
    redis.call('del', hold_key(prefix, id, n))
  end
  redis.call('hdel', hash, id)
end

-- shrink lowers a reader's count to wanted, at least 1. What stays keeps left, the longest lease. The first write is one that a full
-- Redis allows.
local function shrink(hash, prefix, id, count, wanted, left)
  for n = wanted + 1, count do
    redis.call('del', hold_key(prefix, id, n))
  end
  local last = hold_key(prefix, id, wanted)
  if redis.call('pttl', last) < left then
    redis.call('set', last, '1', 'px', left)
  end
  redis.call('hset', hash, id, wanted)
end

-- longest is what the longest-lived reader has left, 0 when none is alive; one that has enough ends the search. The dead on the way are
-- buried.
local function longest(hash, prefix, enough)
  local best, cursor = 0, '0'
  repeat
    local page = redis.call('hscan', hash, cursor, 'count', 100)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      local id, count = page[2][i], tonumber(page[2][i + 1])
      if count and string.sub(id, -6) ~= ':write' then
        local left = life(prefix, id, count)
        if left == 0 then
          redis.call('hdel', hash, id)
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

-- settle gives the hash the life of its longest-lived reader, after one has left that had own ms. False: none is alive, and the hash is gone.
-- Up to four are all looked at. Among many, only when the one that left was among the longest-lived, and then until another such is
-- met; 100 ms count as the same, and are the most by which the hash may outlive its readers.
local function settle(hash, prefix, own)
  local others, ttl, enough = redis.call('hlen', hash) - 1, redis.call('pttl', hash), math.huge
  if others > 4 and ttl > 0 then
    enough = math.max(ttl - 100, 1)
    if own < enough then
      return true
    end
  end
  local best = others > 0 and longest(hash, prefix, enough) or 0
  if best == 0 then
    redis.call('del', hash)
    return false
  end
  if best < enough then
    redis.call('pexpire', hash, best)
  end
  return true
end

-- writer_of is the id of who has the lock for writing; nil when nobody has.
local function writer_of(hash)
  if redis.call('hget', hash, 'mode') == 'write' then
    for _, field in ipairs(redis.call('hkeys', hash)) do
      if string.sub(field, -6) == ':write' then
        return string.sub(field, 1, -7)
      end
    end
  end
end

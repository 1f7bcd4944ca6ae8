-- rwlock/fit_ttl: keep the hash for as long as its longest-lived reader, see rwlock/readers.
-- uses     rwlock/hold_keys, rwlock/readers
-- defines  fit_ttl(lock_hash, prefix, left)

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

-- fairlock/tell: pass the free lock to the next owner.
-- Grant it to a waiter of ours at once. Tell a waiter that cannot be granted it that it is free.
-- uses     queue
-- defines  pass(command, again, answered), tell(command), withdraw(id, command),
--          guarded(f, ...)

-- guarded calls f. If a key has another type, it returns nil and the error, so that the script can
-- do what does not need that key before it answers with the error.
local function guarded(f, ...)
  local ok, answer = pcall(f, ...)
  if ok then
    return answer
  end
  return nil, type(answer) == 'table' and answer or redis.error_reply(tostring(answer))
end

local function grant(id, ttl)
  redis.call('hset', KEYS[1], id, 1)
  redis.call('pexpire', KEYS[1], ttl)
end

-- announce tells the client that the lock was granted to its waiter: by the answer to this script
-- if the client asks for it, else by a message.
local function announce(command, answered, id, client, since, ttl)
  local text = id .. ' ' .. since .. ' ' .. ttl
  if client == answered then
    return text
  end
  redis.call(command, KEYS[2] .. ':' .. client, text)
end

-- stamp_new_head keeps Redisson from removing the new head of a queue without Redisson's waiters
-- too early: it may have used up half of its score's time already.
local function stamp_new_head(at, id, entry)
  local timeout, _, _, since = parse(entry)
  local whole = deadline(0, timeout)
  if at - (tonumber(since) or 0) > whole / 2 then
    local highest = redis.call('zrange', KEYS[6], -1, -1, 'withscores')[2]
    redis.call('zadd', KEYS[6], math.min(at + whole, tonumber(highest)), id)
  end
end

-- pass gives the free lock to the next owner, if there is one. again: that one may have been told
-- before. answered: the client that reads this script's answer and needs no message. If the lock is
-- granted to one of its waiters, pass returns the id, the time at which it joined, and the TTL.
--
-- In the common case the first two waiters are ours, the first can be granted the lock, and the
-- queue is not mixed. Four reads show that, and the scores need no restamp.
local function pass(command, again, answered)
  local two = redis.call('lrange', KEYS[5], 0, 1)
  local first, second = two[1], two[2]
  if not first then
    clear()
    return
  end
  local entries = redis.call('hmget', KEYS[7], first, second or first)
  local timeout, client, ttl, since = parse(entries[1])
  local at, left, common = now(), 0, false
  if ttl and entries[2] then
    local known = redis.call('hmget', KEYS[8], client, 'shared')
    left = tonumber(known[1] or 0) + timeout - at
    common = left > 0 and not known[2]
  end
  if not common then
    first, left = head(at)
    if not first then
      return
    end
    timeout, client, ttl, since = waiter(first)
    if not ttl then
      restamp(at, not again)
      redis.call(command, KEYS[2] .. ':' .. first, '0')
      return
    end
  end
  -- Without a heartbeat the grant ends with the waiter's timeout: a dead waiter costs no more.
  ttl = math.min(ttl, left)
  if common then
    redis.call('zrem', KEYS[6], first)
    redis.call('lpop', KEYS[5])
    redis.call('hdel', KEYS[7], first)
  else
    remove(first)
  end
  grant(first, ttl)
  if common and second then
    stamp_new_head(at, second, entries[2])
  else
    if not common then
      restamp(at, true)
    end
    note_holder(first, ttl)
  end
  return announce(command, answered, first, client, since, ttl)
end

local function tell(command)
  pass(command)
end

-- withdraw removes a waiter, and passes on the free lock if that waiter was the next owner. If a key
-- has another type, it removes the waiter from the others, and returns the error.
local function withdraw(id, command)
  local _, fault = guarded(function()
    if not redis.call('zscore', KEYS[6], id) then
      return
    end
    local front = redis.call('lindex', KEYS[5], 0) == id
    remove(id)
    if front and redis.call('exists', KEYS[1]) == 0 then
      pass(command)
      return
    end
    restamp(now(), front)
  end)
  if fault then
    redis.pcall('lrem', KEYS[5], 0, id)
    redis.pcall('zrem', KEYS[6], id)
    redis.pcall('hdel', KEYS[7], id)
  end
  return fault
end

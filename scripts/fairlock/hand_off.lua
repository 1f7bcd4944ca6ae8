-- fairlock/hand_off: hand the free lock off to the next waiter in the queue.
-- A redlatch waiter is granted the lock at once, if it asked for that. Any other waiter gets a
-- message that the lock is free.
-- uses     lib/clock, fairlock/queue
-- defines  hand_off(lock, publish, notified_before, asking_client), leave_queue(lock, id, publish),
--          try_call(f, ...)

-- try_call calls f. If a key has another type, it returns nil and the error, so that the script can
-- do what does not need that key before it returns the error.
local function try_call(f, ...)
  local ok, answer = pcall(f, ...)
  if ok then
    return answer
  end
  return nil, type(answer) == 'table' and answer or redis.error_reply(tostring(answer))
end

-- grant makes id the holder.
local function grant(lock, id, ttl_ms)
  redis.call('hset', lock.hash, id, 1)
  redis.call('pexpire', lock.hash, ttl_ms)
end

-- report_grant tells the client that the lock was granted to its waiter: by the answer to this
-- script if that client runs it, else by a message.
local function report_grant(lock, publish, asking_client, id, client, since, ttl_ms)
  local text = id .. ' ' .. since .. ' ' .. ttl_ms
  if client == asking_client then
    return text
  end
  redis.call(publish, lock.channel .. ':' .. client, text)
end

-- score_new_head keeps Redisson from removing the new head of a queue without Redisson's waiters
-- too early: it may have used up half of its score's time already.
local function score_new_head(lock, now, id, entry)
  local timeout, _, _, since = parse_waiter(entry)
  local whole = score_after(0, timeout)
  if now - (tonumber(since) or 0) > whole / 2 then
    local highest = redis.call('zrange', lock.deadlines, -1, -1, 'withscores')[2]
    redis.call('zadd', lock.deadlines, math.min(now + whole, tonumber(highest)), id)
  end
end

-- hand_off gives the free lock to the next owner, if there is one. notified_before: the next owner
-- may have got a message before. asking_client: the client that reads this script's answer and
-- needs no message. If the lock is granted to one of its waiters, hand_off returns "<id> <since>
-- <ttl>": since is the time at which the waiter joined.
--
-- In the common case the first two waiters are redlatch waiters, the first can be granted the lock,
-- and the queue is not mixed. Four reads show that, and the scores need no update.
local function hand_off(lock, publish, notified_before, asking_client)
  local two = redis.call('lrange', lock.queue, 0, 1)
  local first, second = two[1], two[2]
  if not first then
    delete_empty_queue(lock)
    return
  end
  local entries = redis.call('hmget', lock.waiters, first, second or first)
  local timeout, client, ttl_ms, since = parse_waiter(entries[1])
  local now, left, common = now_ms(), 0, false
  if ttl_ms and entries[2] then
    local known = redis.call('hmget', lock.clients, client, 'shared')
    local heartbeat, mixed = known[1], known[2]
    left = tonumber(heartbeat or 0) + timeout - now
    common = left > 0 and not mixed
  end
  if not common then
    first, left = live_head(lock, now)
    if not first then
      return
    end
    timeout, client, ttl_ms, since = read_waiter(lock, first)
    if not ttl_ms then
      update_scores(lock, now, not notified_before)
      redis.call(publish, lock.channel .. ':' .. first, '0')
      return
    end
  end
  -- Without a heartbeat the grant ends with the waiter's timeout: a dead waiter costs no more.
  ttl_ms = math.min(ttl_ms, left)
  if common then
    redis.call('zrem', lock.deadlines, first)
    redis.call('lpop', lock.queue)
    redis.call('hdel', lock.waiters, first)
  else
    remove_waiter(lock, first)
  end
  grant(lock, first, ttl_ms)
  if common and second then
    score_new_head(lock, now, second, entries[2])
  else
    if not common then
      update_scores(lock, now, true)
    end
    note_holder(lock, first, ttl_ms)
  end
  return report_grant(lock, publish, asking_client, first, client, since, ttl_ms)
end

-- leave_queue removes a waiter, and hands the free lock off if that waiter was the next owner. If a
-- key has another type, it removes the waiter from the others, and returns the error.
local function leave_queue(lock, id, publish)
  local _, fault = try_call(function()
    if not redis.call('zscore', lock.deadlines, id) then
      return
    end
    local was_head = redis.call('lindex', lock.queue, 0) == id
    remove_waiter(lock, id)
    if was_head and redis.call('exists', lock.hash) == 0 then
      hand_off(lock, publish)
      return
    end
    update_scores(lock, now_ms(), was_head)
  end)
  if fault then
    redis.pcall('lrem', lock.queue, 0, id)
    redis.pcall('zrem', lock.deadlines, id)
    redis.pcall('hdel', lock.waiters, id)
  end
  return fault
end

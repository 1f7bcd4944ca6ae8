-- fairlock/hand_off: hand the free lock off to the next waiter in the queue.
-- A redlatch waiter is granted the lock at once, if it asked for that. Any other waiter gets a
-- message that the lock is free.
-- uses     lib/clock, fairlock/queue
-- defines  hand_off(lock, publish, notified_before, asking_client),
--          leave_queue(lock, id, publish, client),
--          tell_head(lock, publish), try_call(f, ...)

-- try_call calls f. If a key has another type, it returns nil and the error, so that the script can
-- do what does not need that key before it returns the error.
local function try_call(f, ...)
  local ok, answer = pcall(f, ...)
  if ok then
    return answer
  end
  return nil, type(answer) == 'table' and answer or redis.error_reply(tostring(answer))
end

-- hand_off gives the free lock to the next owner, if there is one. notified_before: the next owner
-- may have got a message before. asking_client: the client that reads this script's answer and
-- needs no message. If the lock is granted to one of its waiters, hand_off returns "<id> <since>
-- <ttl>".
--
-- In the common case the first two waiters are redlatch waiters, the first can be granted the lock,
-- and the queue is not mixed. Four reads show that, and the scores need no update.
local function hand_off(lock, publish, notified_before, asking_client)
  local two = redis.call('lrange', lock.queue, '0', '1')
  local id, second = two[1], two[2]
  if not id then
    delete_empty_queue(lock)
    return
  end
  local entries = redis.call('hmget', lock.waiters, id, second or id)
  local timeout, client, ttl_ms, since = parse_waiter(entries[1])
  local now, left, common = now_ms(), 0, false
  if ttl_ms and entries[2] then
    local known = redis.call('hmget', lock.clients, client, 'shared')
    local heartbeat, mixed = known[1], known[2]
    left = (tonumber(heartbeat) or 0) + timeout - now
    common = left > 0 and not mixed
  end
  local rules = not (common and second) and queue_rules()
  if common then
    redis.call('zrem', lock.deadlines, id)
    redis.call('lpop', lock.queue)
    redis.call('hdel', lock.waiters, id)
  else
    id, left = rules.live_head(lock, now)
    if not id then
      return
    end
    timeout, client, ttl_ms, since = rules.read_waiter(lock, id)
    if not ttl_ms then
      rules.update_scores(lock, now, not notified_before)
      redis.call(publish, lock.channel .. ':' .. id, '0')
      return
    end
    rules.remove_waiter(lock, id)
  end
  -- Without a heartbeat the grant ends with the waiter's timeout: a dead waiter costs no more.
  local lease_ms = string.format('%d', ttl_ms < left and ttl_ms or left)
  redis.call('hset', lock.hash, id, '1')
  redis.call('pexpire', lock.hash, lease_ms)
  if rules then
    if not common then
      rules.update_scores(lock, now, true)
    end
    rules.note_holder(lock, id, lease_ms)
  elseif now - joined_at(since) > shortest_timeout / 2 then
    -- The new head joined no earlier than the old one, which has waited for long.
    queue_rules().score_new_head(lock, now, second, entries[2])
  end
  -- The waiter's client learns of the grant by the answer to this script, or else by a message.
  local text = id .. ' ' .. since .. ' ' .. lease_ms
  if client == asking_client then
    return text
  end
  redis.call(publish, lock.channel .. ':' .. client, text)
end

-- tell_head tells the first waiter that the lock's TTL became shorter. The client of a redlatch
-- waiter then sends a refresh, and a waiter of Redisson tries. Other clients learn it by their next
-- refresh, within a second.
local function tell_head(lock, publish)
  local id = redis.call('lindex', lock.queue, 0)
  if id then
    local _, client = parse_waiter(redis.call('hget', lock.waiters, id))
    redis.call(publish, lock.channel .. ':' .. (client or id), '0')
  end
end

-- leave_queue removes a waiter, and hands the free lock off if that waiter was the next owner. If a
-- key has another type, it removes the waiter from the others, and returns the error. With the
-- client that leaves, the place stays if another client waits with the same id.
local function leave_queue(lock, id, publish, client)
  local _, fault = try_call(function()
    if not redis.call('zscore', lock.deadlines, id) then
      return
    end
    local rules = queue_rules()
    if client and rules.leave_to_twin(lock, id, client, now_ms()) then
      return
    end
    local was_head = redis.call('lindex', lock.queue, '0') == id
    rules.remove_waiter(lock, id)
    if was_head and redis.call('exists', lock.hash) == 0 then
      hand_off(lock, publish)
      return
    end
    rules.update_scores(lock, now_ms(), was_head)
  end)
  if fault then
    redis.pcall('lrem', lock.queue, '0', id)
    redis.pcall('zrem', lock.deadlines, id)
    redis.pcall('hdel', lock.waiters, id)
  end
  return fault
end
